"""The whole circle over a Hub: text from there, a run, the model to there, and back to whoever loads it."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from datasets import Dataset
from hub_stand_in import Hub, Repository, environment, hub_stand_in
from tiny_run import ENGLISH, GERMAN

from training.settings import ROOT


WITHOUT_THE_PACKAGE = "import sys; sys.modules['vaswani'] = sys.modules['training'] = None\n"
GRAMMAR = ("--dataset_name", "grammar", "--source_lang", "en", "--target_lang", "de")
LOAD = "from transformers import AutoModelForSeq2SeqLM, pipeline\n"


class Place(NamedTuple):
    """A Hub, and a folder of a user of it."""

    hub: Hub
    folder: Path

    def run(self, *line: str, **variables: str | None) -> subprocess.CompletedProcess:
        """Run Python as its user would, who is logged in unless ``HF_TOKEN`` is None."""
        kept = environment(self.hub, self.folder / "home") | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | variables
        given = {name: value for name, value in kept.items() if value is not None}
        return subprocess.run(
            [sys.executable, *line], cwd=self.folder, env=given, capture_output=True, text=True, check=False
        )

    def check(self, *line: str, **variables: str | None) -> str:
        """Run Python, and return what it printed."""
        done = self.run(*line, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def complaint(self, *line: str, **variables: str | None) -> str:
        """Run Python, and return the one line that it complains in."""
        done = self.run(*line, **variables)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr


def dataset() -> dict[str, bytes]:
    """Return the files of a dataset in the layout of wmt/wmt14: a config for each pair of languages, as parquet."""
    files = {}
    for split, count in (("train", 300), ("validation", 10), ("test", 10)):
        pairs = [(i % 10, i // 10 % 10) for i in range(count)]
        rows = [{"en": f"{ENGLISH[a]} {ENGLISH[b]}", "de": f"{GERMAN[b]} {GERMAN[a]}"} for a, b in pairs]
        path = Path(f"{split}.parquet")
        Dataset.from_dict({"translation": rows}).to_parquet(path)
        files[f"de-en/{split}-00000-of-00001.parquet"] = path.read_bytes()
    splits = "".join(f"\n  - split: {split}\n    path: de-en/{split}-*" for split in ("train", "validation", "test"))
    return files | {"README.md": f"---\nconfigs:\n- config_name: de-en\n  data_files:{splits}\n---\n".encode()}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Place]:
    with hub_stand_in() as hub:
        yield Place(hub, tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def said(place, finished_run) -> str:
    """Train a model further on text of the Hub, and send it there; return what the run said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place.folder)
        place.hub.add("datasets", "wmt/numbers", dataset())
    flags = ["--model_name_or_path", str(finished_run / "model"), "--output_dir", "run", "--max_steps", "1"]
    flags += ["--dataset_name", "wmt/numbers", "--dataset_config_name", "de-en", "--max_tokens_per_batch", "300"]
    flags += ["--source_lang", "en", "--target_lang", "de", "--push_to_hub", "--hub_model_id", "numbers"]
    return place.check(str(ROOT / "training" / "run.py"), *flags)


def test_the_folder_that_was_published_is_the_folder_on_the_hub(place, said):
    [*_, files] = place.hub.repositories["models/me/numbers"].commits.values()
    files = {name: content for name, content in files.items() if name != ".gitattributes"}
    published = place.folder / "run" / "model"
    assert files == {path.name: path.read_bytes() for path in published.iterdir()}
    assert b'.from_pretrained("me/numbers")' in files["README.md"]
    assert f"Sent to {place.hub.address}/me/numbers/commit/" in said
    assert said.index("Published to") < said.index("Sent to")


def test_its_card_passes_the_hubs_validation(place, said):
    code = """
from huggingface_hub import ModelCard
card = ModelCard.load("me/numbers")
card.validate()
print(card.data.eval_results[0].metric_type, card.data.language)
card.data.pipeline_tag = "nonsense"
try:
    card.validate()
except ValueError as error:
    print(error)
"""
    first, second = place.check("-c", code).splitlines()
    assert first == "bleu ['en', 'de']"
    assert 'pipeline_tag\\" must be one of' in second


def test_strangers_load_it_with_trust_only_in_any_revision(place, said):
    [first] = list(place.hub.repositories["models/me/numbers"].commits)[1:]
    settings = json.loads((place.folder / "run" / "model" / "generation_config.json").read_text())
    changed = json.dumps(settings | {"num_beams": 7}).encode()
    place.hub.add("models", "me/numbers", {"generation_config.json": changed})
    code = f"""
for revision in ("main", "{first}"):
    model = AutoModelForSeq2SeqLM.from_pretrained("me/numbers", revision=revision, trust_remote_code=True)
    print(model.generation_config.num_beams, type(model).__module__.split(".")[0])
print(pipeline("translation", model="me/numbers", trust_remote_code=True)("one two")[0]["translation_text"])
print(pipeline("translation_en_to_de", model="me/numbers", trust_remote_code=True)("one two")[0]["translation_text"])
try:
    AutoModelForSeq2SeqLM.from_pretrained("me/numbers", trust_remote_code=False)
except ValueError as error:
    print("trust_remote_code=True" in str(error))
"""
    assert place.check("-c", WITHOUT_THE_PACKAGE + LOAD + code, HF_TOKEN=None).splitlines() == [
        "7 transformers_modules",
        f"{settings['num_beams']} transformers_modules",
        "zwei eins",
        "zwei eins",
        "True",
    ]


def test_with_the_package_it_needs_no_trust_and_once_loaded_no_network(place, said):
    code = 'import vaswani\nprint(pipeline("translation", model="me/numbers")("one two")[0]["translation_text"])'
    assert place.check("-c", LOAD + code) == "zwei eins\n"
    before = len(place.hub.requests)
    assert place.check("-c", LOAD + code, HF_HUB_OFFLINE="1") == "zwei eins\n"
    assert len(place.hub.requests) == before


@pytest.mark.parametrize(
    "line",
    [
        ("-m", "vaswani", "translate", "--model", "me/secret", "--input", "text"),
        ("-m", "vaswani", "translate", "--engine", "ctranslate2", "--model", "me/secret", "--input", "text"),
        ("-m", "vaswani", "export", "--model", "me/secret", "--format", "onnx", "--output", "exported"),
        ("-m", "vaswani", "import", "--model", "me/secret", "--from", "marian", "--output", "imported"),
        (str(ROOT / "training/run.py"), "--model_name_or_path", "me/secret", "--output_dir", "nothing",
         *GRAMMAR),
    ],
    ids=["translate", "engine", "export", "import", "train"],
)  # fmt: skip
def test_a_private_model_is_refused_to_strangers_in_a_sentence(place, said, line):
    published = place.folder / "run" / "model"
    if "models/me/secret" not in place.hub.repositories:
        files = {path.name: path.read_bytes() for path in published.iterdir()}
        place.hub.add("models", "me/secret", files, private=True)
    (place.folder / "text").write_text("one two\n")
    complaint = place.complaint(*line, HF_TOKEN=None, HF_HOME=str(place.folder / "home of a stranger"))
    assert (
        "='me/secret' must be a model folder or a Hub id that can be reached (a private one after `hf auth"
        in complaint
    )
    if "translate" in line and "--engine" not in line:
        assert place.check(*line) == "zwei eins\n"
    assert not (place.folder / "nothing").exists()


def test_a_private_dataset_is_refused_to_strangers_in_a_sentence(place, said):
    place.hub.repositories["datasets/wmt/secret"] = Repository(private=True)
    line = [str(ROOT / "training/run.py"), "--dataset_name", "wmt/secret", "--output_dir", "nothing"]
    complaint = place.complaint(*line, "--source_lang", "en", "--target_lang", "de", HF_TOKEN=None)
    assert (
        "dataset_name='wmt/secret' is neither a local folder nor a dataset that can be reached on the Hub" in complaint
    )


@pytest.mark.parametrize(
    ("name", "token", "reason"),
    [
        ("me/new", None, "401"),
        ("you/new", "hf_of_me", "403 Forbidden: You don't have the rights to create a model"),
        ("a b", "hf_of_me", "Repo id must use alphanumeric chars"),
    ],
)
def test_a_run_that_could_not_be_sent_does_not_start(place, name, token, reason):
    line = [str(ROOT / "training/run.py"), *GRAMMAR, "--output_dir", "unsent", "--push_to_hub"]
    complaint = place.complaint(*line, "--hub_model_id", name, HF_TOKEN=token)
    assert f"hub_model_id={name!r} must be a repository that may be written to, after `hf auth login`: " in complaint
    assert reason in complaint
    assert not (place.folder / "unsent").exists()


def test_an_upload_that_breaks_off_is_resumed(place):
    """By the command that the complaint names, and without sending again what had arrived."""
    folder = place.folder / "model"
    folder.mkdir()
    for name in ("model.safetensors", "more.safetensors", "config.json"):
        (folder / name).write_bytes(name.encode() * 1000)
    code = """
import sys
from pathlib import Path
from training.publishing.hub import open_repository, push
from vaswani.errors import UserError
try:
    print(push(Path("model"), open_repository("broken")))
except UserError as error:
    sys.exit(str(error))
"""
    place.hub.uploads.clear()
    place.hub.breaks_at = 2
    done = place.run("-c", code)
    assert done.returncode == 1
    complaint = done.stderr[done.stderr.index("the model is whole in model, but not on the Hub: ") :]
    repository = place.hub.repositories["models/me/broken"]
    assert len(repository.commits) == 1  # nothing of half a model
    place.hub.breaks_at = None
    arrived = place.hub.uploads[0]
    place.hub.uploads.clear()
    [command] = re.findall(r"to send the rest: hf (upload \S+ \S+)\n", complaint)
    place.check("-m", "huggingface_hub.cli.hf", *command.split())
    [_, files] = repository.commits.values()
    assert {path.name: path.read_bytes() for path in folder.iterdir()}.items() <= files.items()
    assert len(place.hub.uploads) == 1
    assert arrived not in place.hub.uploads
