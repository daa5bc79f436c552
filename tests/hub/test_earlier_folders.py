"""A folder that an earlier version published keeps working: it loads, and translates to the same text and scores.

Each folder of `published/` is named by the commit that made it: its `model/` as it was published, and in
`translations.tsv` what that commit's own `translate` gave for 200 sentences: source, translation, score.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from vaswani.loading import load
from vaswani.translation import translate


PUBLISHED = sorted(path for path in (Path(__file__).parent / "published").iterdir() if path.is_dir())
WITHOUT_THE_PACKAGE = """
import sys
sys.modules["vaswani"] = sys.modules["training"] = None  # as if it were not installed
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
folder, *sentences = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
for sentence in sentences:
    output = model.generate(**tokenizer(sentence, return_tensors="pt"), return_dict_in_generate=True)
    text = tokenizer.decode(output.sequences[0], skip_special_tokens=True)
    print(sentence, text, f"{output.sequences_scores[0]:.5f}", sep="\\t")
"""


def read(folder: Path) -> list[list[str]]:
    lines = (folder / "translations.tsv").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(lines) == 200
    return [line.split("\t") for line in lines]


def assert_same(found: list[list[str]], expected: list[list[str]]) -> None:
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    scores = [float(row[2]) for row in found]
    assert scores == pytest.approx([float(row[2]) for row in expected], abs=2e-5)


@pytest.mark.smoke
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda path: path.name)
def test_the_package_translates_as_the_version_that_published_it(folder):
    expected = read(folder)
    model, tokenizer = load(str(folder / "model"), device="cpu")
    translations = translate(model, tokenizer, [source for source, _, _ in expected], with_scores=True)
    found = [
        [source, best.text, str(best.score)] for (source, _, _), (best,) in zip(expected, translations, strict=True)
    ]
    assert_same(found, expected)


@pytest.mark.smoke
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda path: path.name)
def test_its_own_code_does_too(folder, tmp_path):
    expected = read(folder)[::5]  # one at a time, which takes long
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(folder / "model"), *(row[0] for row in expected)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert_same([line.split("\t") for line in done.stdout.split("\n")[:-1]], expected)


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda path: path.name)
def test_it_is_small(folder):
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 200_000
