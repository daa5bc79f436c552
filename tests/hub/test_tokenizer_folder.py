"""The tokenizer of a saved folder, loaded where nobody can answer a question: no terminal, no package."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vaswani import VaswaniForConditionalGeneration
from vaswani.tokenization import train_tokenizer


TEXT = "The dog </s>  sees the Hündchen."
WITHOUT_THE_PACKAGE = 'import sys; sys.modules["vaswani"] = sys.modules["training"] = None'


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["The dog sees the cat.", "Der Hund sieht die Katze."] * 20, 280)


@pytest.fixture
def folder(tokenizer, tiny_config, tmp_path) -> Path:
    VaswaniForConditionalGeneration(tiny_config(vocab_size=280)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(start: str, *calls: str) -> subprocess.CompletedProcess:
    """Load in a new process without standard input, and print the ids that each tokenizer gives."""
    code = [start, "import transformers", *(f"print({call}({TEXT!r}).input_ids)" for call in calls)]
    return subprocess.run(
        [sys.executable, "-c", "\n".join(code)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("start", "trust"), [(WITHOUT_THE_PACKAGE, ", trust_remote_code=True"), ("import vaswani", "")]
)
def test_it_loads_without_a_question_or_a_warning(start, trust, folder, tokenizer):
    fast = f"transformers.PreTrainedTokenizerFast.from_pretrained({str(folder)!r})"
    done = load(start, fast, f"transformers.AutoTokenizer.from_pretrained({str(folder)!r}{trust})")
    assert (done.stderr, done.stdout) == ("", f"{tokenizer(TEXT).input_ids}\n" * 2)


def test_autotokenizer_asks_for_trust_unless_the_folder_cannot_load_its_model(folder, tokenizer):
    """It loads the model's config first, and that is code, whatever the tokenizer's own file says.

    Where this fails because it no longer asks, README.md, MODEL_CARD.md and tokenization.py need not say that it does.
    """
    assert '"TokenizersBackend"' in (folder / "tokenizer_config.json").read_text()  # a class of transformers
    silent = folder.with_name("silent")
    shutil.copytree(folder, silent)
    config = json.loads((silent / "config.json").read_text())
    del config["auto_map"]["AutoConfig"]  # without which no Auto class finds the model
    (silent / "config.json").write_text(json.dumps(config))
    calls = (f"transformers.AutoTokenizer.from_pretrained({str(path)!r})" for path in (folder, silent))
    done = load(WITHOUT_THE_PACKAGE, *calls)
    assert done.stdout.count("Do you wish to run the custom code? [y/N]") == 1
    assert done.stdout.endswith(f"{tokenizer(TEXT).input_ids}\n" * 2)
