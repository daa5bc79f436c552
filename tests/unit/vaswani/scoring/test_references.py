import re
from pathlib import Path

import pytest
from datasets import Dataset

from vaswani.errors import UserError
from vaswani.scoring.references import EvaluationSet, read_dataset, read_files, read_hypotheses, wrong_size


@pytest.mark.parametrize(
    ("name", "split", "lines", "said"),
    [
        ("newstest2014.de", "test", 3003, None),
        ("wmt14 (de-en)", "test", 3003, None),
        ("wmt14 (de-en)", "validation", 3000, None),
        ("multi30k", "test", 1000, None),
        (
            "anything",
            "test",
            2737,
            "2,737 lines are the filtered newstest2014 .* another test set than .* 3,003 lines",
        ),
        ("newstest2014.de", "test", 2737, "2,737 lines are the filtered newstest2014"),
        ("newstest2014.de", "test", 3000, "newstest2014 has 3,003 lines, but this has 3,000"),
        ("wmt14 (de-en)", "validation", 500, "newstest2013 has 3,000 lines, but this has 500"),
        ("WMT14 (de-en)", "test", 500, "newstest2014 has 3,003 lines, but this has 500"),
        ("Newstest2014.de", "test", 500, "newstest2014 has 3,003 lines, but this has 500"),
    ],
)
def test_test_sets_of_the_wrong_size_are_noticed(name, split, lines, said):
    warning = wrong_size(EvaluationSet(name, split, None, ["x"] * lines))
    assert warning is None if said is None else re.search(said, warning)


def test_files_are_read_in_order_and_cut_to_the_samples(tmp_path):
    for name, lines in (("a.en", "one\n\nthree\n"), ("a.de", "eins\nzwei\ndrei\n")):
        (tmp_path / name).write_text(lines)
    text = read_files(str(tmp_path / "a.en"), str(tmp_path / "a.de"), samples=2)
    assert text == EvaluationSet("a.de", "test", ["one", ""], ["eins", "zwei"])
    assert read_files(None, str(tmp_path / "a.de")).sources is None
    with pytest.raises(UserError, match=r"has 3 lines but a\.de has 2"):
        read_hypotheses(str(tmp_path / "a.en"), text)


def test_hypotheses_are_of_all_lines_or_of_the_samples(tmp_path):
    text = EvaluationSet("a.de", "test", None, ["eins", "zwei"])
    path = str(tmp_path / "hypotheses")
    for lines in (["1", "2"], ["1", "2", "3", "4"]):
        Path(path).write_text("".join(f"{line}\n" for line in lines))
        assert read_hypotheses(path, text, samples=2) == ["1", "2"]
    with pytest.raises(UserError, match=r"has 4 lines but a\.de has 2: the numbers must be equal$"):
        read_hypotheses(path, text, samples=3)
    Path(path).write_text("1\n")
    with pytest.raises(UserError, match=r"has 1 lines but the first 2 of a\.de are scored: it must have as many$"):
        read_hypotheses(path, text, samples=2)


def test_sources_are_of_all_lines_or_of_the_samples(tmp_path):
    for name, lines in (("a.en", "one\n"), ("a.de", "eins\nzwei\ndrei\n")):
        (tmp_path / name).write_text(lines)
    paths = str(tmp_path / "a.en"), str(tmp_path / "a.de")
    assert read_files(*paths, samples=1).sources == ["one"]
    with pytest.raises(UserError, match=r"has 1 lines but the first 2 of a\.de are scored: it must have as many$"):
        read_files(*paths, samples=2)


@pytest.mark.parametrize(("source", "target"), [("\n \n", "eins\nzwei\n"), ("\none\n", "eins\n\n")])
def test_a_text_without_a_pair_is_refused(source, target, tmp_path):
    files = tmp_path / "a.en", tmp_path / "a.de"
    for path, lines in zip(files, (source, target), strict=True):
        path.write_text(lines)
    rows = {"source": source.split("\n")[:2], "target": target.split("\n")[:2]}
    for read in (
        lambda: read_files(*map(str, files)),
        lambda: read_dataset("a", None, "test", ("en", "de"), None, lambda *asked: Dataset.from_dict(rows)),
    ):
        with pytest.raises(UserError, match=r"^the text holds no pair to score: "):
            read()
    files[1].write_text("\n\n")
    with pytest.raises(UserError, match=r"^the text holds no pair to score: "):
        read_files(None, str(files[1]))


def test_a_dataset_is_asked_for_what_was_named_and_its_missing_sentences_are_empty():
    asked = []

    def read_split(*arguments):
        asked.append(arguments)
        return Dataset.from_dict({"source": ["one", None, "three"], "target": ["eins", "zwei", None]})

    text = read_dataset("some/wmt", "de-en", "validation", ("en", "de"), 2, read_split)
    assert asked == [("some/wmt", "de-en", "validation", ("en", "de"))]
    assert text == EvaluationSet("wmt (de-en)", "validation", ["one", ""], ["eins", "zwei"])
