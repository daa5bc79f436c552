"""A saved folder of a predecessor translates without the package to the text that the package gives."""

import json
import subprocess
import sys

import pytest
import torch
from small_convolutional import small_model
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
folder, *sentences = sys.argv[1:]
translator = pipeline("translation", model=folder, trust_remote_code=True)
assert type(translator.model).__module__.startswith("transformers_modules")
print(json.dumps(translator(sentences)))
"""


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_its_own_code_translates_as_the_package_does(make, tmp_path):
    tokenizer = train_tokenizer(["one two three four"], 262)
    model = make(vocab_size=262, source_lang="en", target_lang="de", max_position_embeddings=20)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    expected = pipeline("translation", model=str(tmp_path))(SENTENCES)
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(tmp_path), *SENTENCES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected
    assert len({translation["translation_text"] for translation in expected}) == 3
