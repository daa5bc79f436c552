import pytest
from small_parser import SENTENCES, TREES

from vaswani.errors import UserError
from vaswani.models.trees_vaswani import restore
from vaswani.parsing.splits import load_split, load_treebank


@pytest.fixture
def treebank(tmp_path) -> str:
    (tmp_path / "train.mrg").write_text("".join(f"( {tree} )\n" for tree in TREES))
    (tmp_path / "validation.mrg").write_text(TREES[0] + "\n")
    return f"treebank:{tmp_path}"


def test_a_treebank_has_words_and_symbols_in_columns_of_the_languages(treebank):
    splits = load_treebank(treebank, ("en", "tree"))
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 4, "validation": 1}
    assert splits["train"]["en"][:] == SENTENCES
    for tree, symbols, words in zip(TREES, splits["train"]["tree"], SENTENCES, strict=True):
        assert str(restore(symbols, words.split(), is_gold=True).tree) == tree


def test_a_split_comes_as_source_and_target(treebank):
    rows = load_split(treebank, None, "validation", ("en", "tree"))
    assert (rows["source"][:], rows.column_names) == (SENTENCES[:1], ["source", "target"])
    with pytest.raises(UserError, match=r"has no split 'test', only 'train', 'validation'"):
        load_split(treebank, None, "test", ("en", "tree"))


def test_the_target_of_a_treebank_is_trees(treebank):
    with pytest.raises(UserError, match=r"target_lang='de' must be 'tree': dataset_name='treebank:.*' has trees"):
        load_treebank(treebank, ("en", "de"))


def test_other_datasets_are_read_as_ever(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"en": "a", "de": "b"}\n')
    assert load_split(str(tmp_path), None, "train", ("en", "de"))["target"][:] == ["b"]
