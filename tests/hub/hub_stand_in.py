"""A Hub to push to on this machine: just enough of its HTTP interface for create_repo and upload_folder."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def hub_stand_in() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Serve on a free port; yield the address and the files that get committed, by name."""
    files: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode("utf-8")
            if self.path == "/api/repos/create":
                answer = {"url": f"http://{self.headers['Host']}/me/{json.loads(body)['name']}"}
            elif "/preupload/" in self.path:
                answer = {"files": [self.describe(file["path"]) for file in json.loads(body)["files"]]}
            elif "/commit/" in self.path:
                operations = [json.loads(line) for line in body.splitlines()]
                for operation in operations:
                    if operation["key"] == "file":
                        files[operation["value"]["path"]] = base64.b64decode(operation["value"]["content"])
                answer = {"commitUrl": f"http://{self.headers['Host']}/me/model/commit/1", "commitOid": "1"}
            else:
                answer = {"errors": [], "warnings": []}  # the check of the card's front matter
            self.answer(answer)

        def do_GET(self) -> None:
            self.answer({"id": "me/model", "sha": "0", "siblings": [], "name": "me", "type": "user"})

        @staticmethod
        def describe(path: str) -> dict[str, object]:
            return {"path": path, "uploadMode": "regular", "shouldIgnore": False}

        def answer(self, content: dict) -> None:
            data = json.dumps(content).encode("utf-8")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
