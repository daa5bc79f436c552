"""A saved folder of a predecessor or a parser gives without the package what it gives with the package."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from nltk import Tree
from small_convolutional import small_model
from small_parser import save_parser
from transformers import pipeline

from vaswani import RecurrentConfig, RecurrentForConditionalGeneration
from vaswani.tokenization import train_tokenizer


pytestmark = pytest.mark.smoke


def small_recurrent(**fields) -> RecurrentForConditionalGeneration:
    del fields["max_position_embeddings"]  # it has no table
    config = RecurrentConfig(d_model=16, num_layers=2, bidirectional=True, attention="additive", **fields)
    model = RecurrentForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 1.0)  # so that sentences have different translations
    return model


MODELS = {"convolutional": small_model, "recurrent": small_recurrent}
SENTENCES = ["one two three four", "four four", "three"]
WITHOUT_THE_PACKAGE = """
import json, sys
sys.modules["vaswani"] = sys.modules["training"] = None  # as if it were not installed
from transformers import pipeline
task, folder, *sentences = sys.argv[1:]
at_work = pipeline(task, model=folder, trust_remote_code=True)
assert type(at_work.model).__module__.startswith("transformers_modules")
print(json.dumps(at_work(sentences)))
"""


def check_without_the_package(task: str, folder: Path) -> list[dict]:
    expected = pipeline(task, model=str(folder))(SENTENCES)
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, task, str(folder), *SENTENCES]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected
    return expected


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_its_own_code_translates_as_the_package_does(make, tmp_path):
    tokenizer = train_tokenizer(["one two three four"], 262)
    model = make(vocab_size=262, source_lang="en", target_lang="de", max_position_embeddings=20)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    expected = check_without_the_package("translation", tmp_path)
    assert len({translation["translation_text"] for translation in expected}) == 3


def test_the_code_of_a_parser_parses_as_the_package_does(tmp_path):
    save_parser(tmp_path)
    expected = check_without_the_package("parse", tmp_path)
    assert [Tree.fromstring(parsed["tree"]).leaves() for parsed in expected] == list(map(str.split, SENTENCES))
