"""A run that starts from a published model, as README has it, and one that is killed on its way."""

import re
import shlex
import shutil
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from opus_model import save_opus, sentences
from safetensors.torch import load_file, save_file
from tiny_run import ENGLISH, ENVIRONMENT, GERMAN, PYTHON, end_it_at, rows
from transformers import pipeline

from training.settings import ROOT


@pytest.fixture(scope="module")
def place(finished_run, tmp_path_factory) -> Path:
    """Return a folder with what README's command names: a model, and text that says numbers in their own order."""
    place = tmp_path_factory.mktemp("place")
    shutil.copytree(finished_run / "model", place / "runs" / "multi30k-en-de" / "model")
    (place / "my").mkdir()
    for split in ("train", "dev"):
        pairs = [(a, b) for a in range(10) for b in range(10) if (a + b) % 5 or split == "dev"]
        lines = (f"{ENGLISH[a]} {ENGLISH[b]}\t{GERMAN[a]} {GERMAN[b]}\n" for a, b in pairs)
        (place / "my" / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def flags() -> list[str]:
    """Return the flags of README's command, for text that is learned in fewer steps."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Adapt a model\n")[1].split("\n## ")[0]
    [line] = re.findall(r"^accelerate launch training/run.py (.*)$", section, flags=re.MULTILINE)
    faster = ["--max_steps=80", "--logging_steps=5", "--save_steps=8", "--max_tokens_per_batch=300"]
    return [*shlex.split(line), *faster, "--learning_rate_factor=0.15"]


RUN = [*PYTHON, str(ROOT / "training" / "run.py")]


def train(place: Path, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([*RUN, *flags], cwd=place, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def adapted(place, flags) -> Path:
    done = train(place, *flags)
    assert done.returncode == 0, done.stderr
    assert "Starts from the weights of numbers, trained on en-de\n" in done.stdout + done.stderr
    return place / "runs" / "adapted"


def test_it_starts_from_what_the_model_knows_and_learns_what_is_new(adapted):
    first, *_, last = rows(adapted)
    assert first["nll"] < 2  # log(290) = 5.7 where nothing is known; what it knows is the opposite order
    assert last["exact_match"] > 70
    translator = pipeline("translation", model=str(adapted / "model"))
    assert translator("one two")[0]["translation_text"] == "eins zwei"


def test_recipe_and_card_say_where_it_comes_from_without_a_path_of_this_machine(adapted, place):
    recipe = tomllib.loads((adapted / "model" / "recipe.toml").read_text())
    assert recipe["model_name_or_path"] == "runs/multi30k-en-de/model"
    assert not {"config_name", "vocab_size", "tokenizer_name"} & recipe.keys()
    assert (recipe["run"]["base_model"], recipe["run"]["base_model_direction"]) == ("numbers", "en-de")
    card = ModelCard.load(adapted / "model" / "README.md")
    assert (card.data.base_model, card.data.base_model_relation) == ("numbers", "finetune")
    assert "| starts from | the weights and the vocabulary of `numbers`" in card.text
    assert recipe["run"]["base_model_sha256"] in card.text
    base_card = ModelCard.load(place / "runs" / "multi30k-en-de" / "model" / "README.md")
    assert base_card.data.base_model is None
    assert "starts from" not in base_card.text


def test_config_and_tokenizer_are_the_models_and_the_folder_is_whole(adapted, place):
    base = place / "runs" / "multi30k-en-de" / "model"
    names = {path.name for path in base.iterdir()}
    assert {path.name for path in (adapted / "model").iterdir()} == names
    for name in names - {"README.md", "recipe.toml", "model.safetensors"}:
        assert (adapted / "model" / name).read_bytes() == (base / name).read_bytes(), name


def test_after_kill_9_it_ends_as_if_it_had_not_been_killed_wherever_the_model_lies(adapted, place, flags, tmp_path):
    base, killed = place / "runs" / "multi30k-en-de" / "model", tmp_path / "killed"
    flags = [*flags, f"--train_file={place}/my/train.tsv", f"--validation_file={place}/my/dev.tsv"]
    flags += [f"--output_dir={killed}"]
    status, said = end_it_at(30, signal.SIGKILL, [*RUN, *flags, f"--model_name_or_path={base}"], killed)
    assert status == -signal.SIGKILL, said

    other = shutil.copytree(base, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["model.shared.weight"][5] += 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    flags.append("--resume_from_checkpoint=latest")
    done = train(place, *flags, f"--model_name_or_path={other}")
    assert "since it is of another run: base_model's sha256 is" in done.stderr

    moved = shutil.copytree(base, tmp_path / "moved")
    done = train(place, *flags, f"--model_name_or_path={moved}")
    assert done.returncode == 0, done.stderr
    assert "Resumed from" in done.stdout + done.stderr
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (killed, adapted))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert rows(killed) == rows(adapted)


def test_a_model_of_opus_is_imported_trained_on_and_used(tmp_path):
    save_opus(tmp_path / "opus")
    command = [*PYTHON, "-m", "vaswani", "import", "--from", "marian", "--model", "opus", "--output", "imported"]
    subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, check=True, capture_output=True)
    pairs = [f"{source}\t{target}\n" for source, target in zip(sentences("source"), sentences("target"), strict=True)]
    (tmp_path / "text.tsv").write_text("".join(pairs), encoding="utf-8")
    flags = ["--model_name_or_path", "imported", "--output_dir", "run", "--source_lang", "en", "--target_lang", "de"]
    flags += ["--train_file", "text.tsv", "--validation_file", "text.tsv", "--max_tokens_per_batch", "300"]
    done = train(tmp_path, *flags, "--max_steps", "60", "--logging_steps", "10", "--warmup_steps", "30")
    assert done.returncode == 0, done.stderr
    published = tmp_path / "run" / "model"
    assert "byte-level" not in ModelCard.load(published / "README.md").text
    assert "have swish where the paper has a ReLU" in ModelCard.load(published / "README.md").text
    translator = pipeline("translation", model=str(published))
    assert type(translator.tokenizer).__name__ == "MarianTokenizer"
    assert translator("two large dogs .")[0].keys() == {"translation_text"}
    first, *_, last = rows(tmp_path / "run")
    assert last["nll"] < 0.9 * first["nll"]  # it began from random weights
