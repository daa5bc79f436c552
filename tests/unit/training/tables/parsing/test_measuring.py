import json
from pathlib import Path

import pytest
from small_parser import SENTENCES, save_parser
from transformers import AutoTokenizer

from training.settings import TrainingSettings
from training.tables.parsing import measuring
from training.tables.sweep import Run
from vaswani.models.legal_trees_vaswani import PARTS_OF_SPEECH
from vaswani.parsing.scores import score


@pytest.fixture
def run(tmp_path) -> Run:
    save_parser(tmp_path / "run" / "model")
    settings = TrainingSettings()
    settings.run.output_dir = str(tmp_path / "run")
    return Run("run", [], settings, 1.0)


def test_trees_are_a_text_of_words_and_symbols(trees):
    text = measuring.as_text("test", trees)
    assert (text.split, text.sources) == ("test", SENTENCES)
    assert text.references[0] == "(S (NP (DT) (NN) )NP (VP (VBZ) )VP (.) )S"


def test_a_parser_is_measured_by_each_search_and_once(trees, run, parses, monkeypatch):
    text = measuring.as_text("test", trees)
    tokenizer = AutoTokenizer.from_pretrained(run.directory / "model")
    tokenizer.init_kwargs[PARTS_OF_SPEECH] = {word: tag for tree in trees for word, tag in tree.leaves()}
    tokenizer.save_pretrained(run.directory / "model")
    rows = [parses.to_row() | {"bracketing_f1": 4.4}, parses.to_row()]
    rows.append(parses.to_row() | {"split": "validation", "bracketing_f1": 5.5})
    (run.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    free, only, known = (measuring.measure_parser(run, text, search) for search in measuring.SEARCHES)
    assert free.well_formed < only.well_formed == 100
    assert only.tagging_accuracy < 100  # what it would be with the dictionary
    assert (free.sentences, only.decoding) == (4, "greedy, trees only")
    assert known == parses
    monkeypatch.setattr(measuring, "load", lambda path: pytest.fail("measured twice"))
    assert measuring.measure_parser(run, text, "free") == free
    assert sorted(path.name for path in Path(run.directory).glob("*.json")) == [
        "parses-test-free.json",
        "parses-test-trees-only.json",
    ]


def test_floors_are_measured_once(trees, write_half, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_half)
        with pytest.raises(OSError, match="full"):
            measuring.floors(tmp_path, trees, "validation", trees)
    found = measuring.floors(tmp_path, trees, "validation", trees)
    assert {evaluation.split for evaluation in found.values()} == {"validation"}
    text = measuring.as_text("test", trees)
    assert found["PCFG"].bracketing_f1 == score(SENTENCES, text.references, text.references)["bracketing_f1"] == 100
    monkeypatch.setattr(measuring, "measure_floors", lambda *_: pytest.fail("measured twice"))
    assert measuring.floors(tmp_path, trees, "validation", trees) == found
    assert [path.name for path in tmp_path.glob("*.json")] == ["floors-validation.json"]
