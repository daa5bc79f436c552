import pytest
from small_parser import TREES

from training.tables.parsing.rows import PAPER_ROWS, Row, checksums, make_rows, write_treebank
from vaswani.parsing.treebank import find_files, read_trees


@pytest.fixture
def splits(tmp_path):
    (tmp_path / "trees").write_text("".join(tree + "\n" for tree in TREES * 2))
    trees = list(read_trees(tmp_path / "trees"))
    return {"train": trees, "validation": trees[:1], "test": trees[1:2]}


# Table 4 as the paper prints it.
TABLE_4 = [
    ("Vinyals & Kaiser et al. (2014)", "WSJ only, discriminative", 88.3),
    ("Petrov et al. (2006)", "WSJ only, discriminative", 90.4),
    ("Zhu et al. (2013)", "WSJ only, discriminative", 90.4),
    ("Dyer et al. (2016)", "WSJ only, discriminative", 91.7),
    ("Transformer (4 layers)", "WSJ only, discriminative", 91.3),
    ("Zhu et al. (2013)", "semi-supervised", 91.3),
    ("Huang & Harper (2009)", "semi-supervised", 91.3),
    ("McClosky et al. (2006)", "semi-supervised", 92.1),
    ("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    ("Transformer (4 layers)", "semi-supervised", 92.7),
    ("Luong et al. (2015)", "multi-task", 93.0),
    ("Dyer et al. (2016)", "generative", 93.3),
]


def test_the_papers_rows_are_as_printed():
    assert [(row.parser, row.training, row.f1) for row in PAPER_ROWS] == TABLE_4


def test_rows_are_shares_and_one_of_which_nothing_is_made():
    rows = make_rows([1.0, 0.25, 0.125], with_plain=True)
    assert [row.name for row in rows] == ["12.5%", "25%", "100%", "100%, nothing made of them"]
    assert [row.folder for row in rows] == ["12.5", "25", "100", "100-plain"]
    assert make_rows([0.5], with_plain=False) == [Row(0.5)]


def test_smaller_shares_are_parts_of_larger_ones(splits, tmp_path):
    found = {}
    for row in (Row(0.2), Row(0.5), Row(1.0)):
        folder = tmp_path / row.folder
        write_treebank(row, splits, folder, seed=1)
        found[row.folder] = [str(tree) for path in find_files(folder)["train"] for tree in read_trees(path)]
        assert (folder / "test.mrg").read_text() == TREES[1] + "\n"
    assert [len(trees) for trees in found.values()] == [2, 4, 8]
    assert set(found["20"]) <= set(found["50"]) <= set(found["100"])
    assert found["100"] == TREES * 2


def test_a_checksum_is_of_all_trees_of_its_split(splits):
    before, after = checksums(splits), checksums(splits | {"train": [*splits["train"][:-1], splits["train"][0]]})
    assert [split for split in splits if before[split] != after[split]] == ["train"]


def test_a_treebank_that_is_there_stays_untouched(splits, tmp_path):
    write_treebank(Row(0.5), splits, tmp_path, seed=1)
    before = (tmp_path / "train.mrg").stat().st_mtime_ns
    write_treebank(Row(0.5), splits, tmp_path, seed=1)
    assert (tmp_path / "train.mrg").stat().st_mtime_ns == before
    write_treebank(Row(1.0), splits, tmp_path, seed=1)
    assert (tmp_path / "train.mrg").stat().st_mtime_ns != before
