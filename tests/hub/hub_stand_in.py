"""A Hub on this machine: as much of its HTTP interface as publishing, loading and `load_dataset` ask for.

Written after what huggingface_hub, transformers and datasets send; large files go by git-lfs, so set
``HF_HUB_DISABLE_XET``, whose protocol has no stand-in here.
"""

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


TOKEN = "hf_of_me"  # reads and writes everything
LARGE = (".safetensors", ".parquet")  # as the .gitattributes of a new repository says
# The card's fields that the real Hub checks, and what it takes.
CARD_CHOICES = {
    "pipeline_tag": {"translation", "token-classification"},
    "license": {"apache-2.0"},
    "library_name": {"transformers"},
}


@dataclass
class Repository:
    """Files by path, for each commit the whole tree; the last one is "main"."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes]) -> str:
        """Add or replace files; return the commit's name."""
        tree = (list(self.commits.values())[-1] if self.commits else {}) | files
        digest = hashlib.sha1(str(len(self.commits)).encode())
        for name, content in sorted(tree.items()):
            digest.update(name.encode() + content)
        self.commits[digest.hexdigest()] = tree
        return digest.hexdigest()

    def revision(self, name: str) -> str | None:
        """Return the commit that a revision means, if there is one."""
        return list(self.commits)[-1] if name == "main" and self.commits else name if name in self.commits else None


@dataclass
class Hub:
    """What is on it, and what went over the line."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)  # "models/me/model"
    blobs: dict[str, bytes] = field(default_factory=dict)  # large files, by SHA-256, committed or not
    uploads: list[str] = field(default_factory=list)  # the blobs that were sent, each time
    requests: list[str] = field(default_factory=list)
    breaks_at: int | None = None  # this upload of a blob breaks off, and all after it

    def add(self, kind: str, name: str, files: dict[str, bytes], private: bool = False) -> str:
        """Commit files to a repository, which is made if there is none; return the commit."""
        repository = self.repositories.setdefault(f"{kind}/{name}", Repository(private))
        return repository.commit(files)


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.status, self.code = status, code


class Handler(BaseHTTPRequestHandler):
    """Answers one request; the class of a server has the `hub`."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer_to("GET")

    def do_HEAD(self) -> None:
        self.answer_to("HEAD")

    def do_POST(self) -> None:
        self.answer_to("POST")

    def do_PUT(self) -> None:
        self.answer_to("PUT")

    def answer_to(self, method: str) -> None:
        """Find what a path means, and answer."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self.read_chunks()
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{method} {path}")
        wanted = f"{'GET' if method == 'HEAD' else method} {path}"
        try:
            for pattern, name in ROUTES:
                match = re.fullmatch(pattern, wanted)
                if match:
                    return getattr(self, name)(**match.groupdict())
            raise Refused(404, "EntryNotFound", f"no such page: {path}")
        except Refused as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": str(refusal)}
            self.send(json.dumps({"error": str(refusal)}).encode(), refusal.status, **headers)

    def read_chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def send(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self, answer: Any, status: int = 200) -> None:
        self.send(json.dumps(answer).encode(), status, **{"Content-Type": "application/json"})

    @property
    def is_me(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def must_be_me(self) -> None:
        if not self.is_me:
            raise Refused(401, "", "Invalid username or password.")

    def find(self, kind: str | None, name: str) -> Repository:
        """Return a repository; a private one is not there for others, as on the real Hub."""
        repository = self.hub.repositories.get(f"{(kind or 'models').strip('/')}/{name}")
        if repository is None or (repository.private and not self.is_me):
            raise Refused(404 if self.is_me else 401, "RepoNotFound", "Repository not found")
        return repository

    def tree(self, kind: str | None, name: str, revision: str) -> tuple[str, dict[str, bytes]]:
        repository = self.find(kind, name)
        commit = repository.revision(revision)
        if commit is None:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, repository.commits[commit]

    # Reading

    def whoami(self) -> None:
        self.must_be_me()
        self.json({"type": "user", "name": "me", "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    def info(self, kind: str, name: str, revision: str | None = None) -> None:
        repository = self.find(kind, name)
        commit, files = self.tree(kind, name, revision or "main") if repository.commits else (None, {})
        about = {"id": name, "sha": commit, "private": repository.private, "tags": [], "gated": False}
        self.json(about | {"siblings": [{"rfilename": path} for path in files], "downloads": 0, "likes": 0})

    def describe(self, path: str, content: bytes) -> dict[str, Any]:
        entry = {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": path}
        if path.endswith(LARGE):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return entry

    def list_tree(self, kind: str, name: str, revision: str, folder: str | None = None) -> None:
        _, files = self.tree(kind, name, revision)
        prefix = f"{folder}/" if folder else ""
        below = {path: content for path, content in files.items() if path.startswith(prefix)}
        if folder and not below:
            raise Refused(404, "EntryNotFound", f"{folder} does not exist on {revision}")
        is_recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() == "true"
        entries, folders = [], {}
        for path, content in below.items():
            parents = path.removeprefix(prefix).split("/")[:-1]
            folders |= {prefix + "/".join(parents[: depth + 1]): None for depth in range(len(parents))}
            if is_recursive or not parents:
                entries.append(self.describe(path, content))
        shown = folders if is_recursive else [path for path in folders if "/" not in path.removeprefix(prefix)]
        self.json([{"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in shown] + entries)

    def paths_info(self, kind: str, name: str, revision: str) -> None:
        _, files = self.tree(kind, name, revision)
        if self.headers.get("Content-Type", "").startswith("application/json"):
            wanted = json.loads(self.body)["paths"]
        else:
            wanted = parse_qs(self.body.decode())["paths"]
        found = [self.describe(path, files[path]) for path in wanted if path in files]
        folders = [path for path in wanted if any(each.startswith(f"{path}/") for each in files)]
        self.json(found + [{"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in folders])

    def resolve(self, name: str, revision: str, path: str, kind: str | None = None) -> None:
        commit, files = self.tree(kind, name, revision)
        if path not in files:
            raise Refused(404, "EntryNotFound", f"{path} does not exist on {revision}")
        content = files[path]
        etag = hashlib.sha256(content).hexdigest()
        self.send(content, **{"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Accept-Ranges": "none"})

    # Writing

    def create(self) -> None:
        self.must_be_me()
        wanted = json.loads(self.body)
        owner, name = wanted.get("organization") or "me", wanted["name"]
        if owner != "me":
            raise Refused(403, "", f"You don't have the rights to create a model under the namespace {owner!r}")
        about = {"url": f"{self.hub.address}/me/{name}", "name": f"me/{name}"}
        if f"models/me/{name}" in self.hub.repositories:
            return self.json(about | {"error": "You already created this model repo"}, 409)
        self.hub.repositories[f"models/me/{name}"] = Repository(bool(wanted.get("private")))
        self.hub.add("models", f"me/{name}", {".gitattributes": b"*.safetensors filter=lfs\n"})
        self.json(about)

    def preupload(self, kind: str, name: str, revision: str) -> None:
        self.must_be_me()
        self.tree(kind, name, revision)
        files = json.loads(self.body)["files"]
        modes = {file["path"]: "lfs" if file["path"].endswith(LARGE) else "regular" for file in files}
        self.json(
            {"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]}
        )

    def batch(self, name: str) -> None:
        self.must_be_me()
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            if wanted["oid"] not in self.hub.blobs:
                upload = {"href": f"{self.hub.address}/blobs/{wanted['oid']}", "header": {}}
                wanted["actions"] = {"upload": upload}
            objects.append(wanted)
        self.json({"transfer": "basic", "objects": objects})

    def put_blob(self, oid: str) -> None:
        self.hub.uploads.append(oid)
        if self.hub.breaks_at is not None and len(self.hub.uploads) >= self.hub.breaks_at:
            raise Refused(400, "", "the line broke")  # 400, which is not tried again; a real one is, for minutes
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "", "another content")
        self.hub.blobs[oid] = self.body
        self.send(b"")

    def commit(self, kind: str, name: str, revision: str) -> None:
        self.must_be_me()
        files = {}
        for operation in map(json.loads, self.body.splitlines()):
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
        commit = self.find(kind, name).commit(files)
        self.json({"commitUrl": f"{self.hub.address}/{name}/commit/{commit}", "commitOid": commit, "success": True})

    def validate_card(self) -> None:
        """Answer as the real one does to a front matter that it cannot use."""
        content = json.loads(self.body)["content"]
        front = yaml.safe_load(content.split("---")[1]) if content.startswith("---") else None
        problems = [] if isinstance(front, dict) else ["the front matter is no mapping"]
        for name, choices in CARD_CHOICES.items():
            if not problems and name in front and front[name] not in choices:
                problems.append(f'"{name}" must be one of {sorted(choices)}')
        if problems:
            raise Refused(400, "", "; ".join(problems))
        self.json({"errors": [], "warnings": []})


KIND, NAME, REVISION = r"(?P<kind>models|datasets|spaces)", r"(?P<name>[^/]+/[^/]+)", r"(?P<revision>[^/]+)"
ROUTES = [
    ("GET /api/whoami-v2", "whoami"),
    ("POST /api/repos/create", "create"),
    ("POST /api/validate-yaml", "validate_card"),
    (f"GET /api/{KIND}/{NAME}", "info"),
    (f"GET /api/{KIND}/{NAME}/revision/{REVISION}", "info"),
    (f"GET /api/{KIND}/{NAME}/tree/{REVISION}(?:/(?P<folder>.+))?", "list_tree"),
    (f"POST /api/{KIND}/{NAME}/paths-info/{REVISION}", "paths_info"),
    (f"POST /api/{KIND}/{NAME}/preupload/{REVISION}", "preupload"),
    (f"POST /api/{KIND}/{NAME}/commit/{REVISION}", "commit"),
    (rf"POST /{NAME}\.git/info/lfs/objects/batch", "batch"),
    ("PUT /blobs/(?P<oid>[0-9a-f]+)", "put_blob"),
    (rf"GET /(?P<kind>datasets/|)(?P<name>[^/]+/[^/]+)/resolve/{REVISION}/(?P<path>.+)", "resolve"),
]


@contextmanager
def hub_stand_in() -> Iterator[Hub]:
    """Serve on a free port, until the end of the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneHandler", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def environment(hub: Hub, home: Any, token: str | None = TOKEN) -> dict[str, str]:
    """Return the variables by which Hugging Face's libraries use this Hub, with a cache of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    variables = {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    variables |= {"HF_HUB_DISABLE_TELEMETRY": "1"} | ({} if token is None else {"HF_TOKEN": token})
    return kept | variables
