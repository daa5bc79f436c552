import gzip
from pathlib import Path

import pytest

from vaswani.errors import UserError
from vaswani.models.trees_vaswani import Tree, linearize, restore
from vaswani.parsing.treebank import find_files, prepare, read_trees


DATA = Path(__file__).parents[5] / "shared" / "data" / "treebank"
MRG = """
( (S
    (NP-SBJ-1 (NNP Vinken) )
    (VP (MD will)
      (VP (VB join) (NP (DT the) (NN board))
        (SBAR (-NONE- 0) (S (-NONE- *T*-1)))))
    (. .) ))
( (NP=2 (NN Tea) ))
"""


@pytest.fixture
def read(tmp_path):
    def read(text: str, name: str = "trees.mrg") -> list[str]:
        (tmp_path / name).write_text(text)
        return [str(tree) for tree in read_trees(tmp_path / name)]

    return read


def test_trees_over_several_lines_lose_function_tags_traces_and_the_outer_bracket(read):
    assert read(MRG) == [
        "(S (NP (NNP Vinken)) (VP (MD will) (VP (VB join) (NP (DT the) (NN board)))) (. .))",
        "(NP (NN Tea))",
    ]


def test_labels_keep_what_is_no_function_tag(read):
    assert read("(TOP (S (NP (-LRB- -LRB-) (PRP$ my)) (ADVP|PRT-CLR (RB x))))\n") == [
        "(S (NP (-LRB- -LRB-) (PRP$ my)) (ADVP|PRT (RB x)))"
    ]


def test_an_outer_bracket_of_several_constituents_stays_as_top(read):
    assert read("( (S (NN a)) (. .))\n") == ["(TOP (S (NN a)) (. .))"]
    assert read("(ROOT (S (NN a)) (. .))\n(S1 (S (NN a)) (. .))\n") == ["(TOP (S (NN a)) (. .))"] * 2
    assert read("( (NN a))\n") == ["(NN a)"]


def test_an_inner_bracket_without_a_label_is_left_out_and_not_what_it_holds(read):
    assert read("( (S ( (NP (DT a)) (-ADV (RB b))) (VP (VB c))))\n") == ["(S (NP (DT a)) (RB b) (VP (VB c)))"]


def test_files_may_be_compressed(tmp_path):
    path = tmp_path / "trees.mrg.gz"
    path.write_bytes(gzip.compress(b"(S (NN a))\n"))
    assert [str(tree) for tree in read_trees(path)] == ["(S (NN a))"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a))\n(S (NN b)\n", "line 2: unbalanced brackets: the tree is not closed before the file ends"),
        ("(S (NN b)\n(S (NN a))\n", "line 1: unbalanced brackets: .* not closed where another begins, in line 2"),
        ("(S (NN a)))\n", "line 1: unbalanced brackets: one is closed that was not opened"),
        ("(S (NN a))\n\nword (NN b)\n", "line 3: 'word' stands outside of all brackets"),
        ("(S (NN a) (NP ))\n", r"line 1: \(NP\) is empty: a bracket must hold constituents or a word"),
        ("()\n", r"line 1: \(\) is empty"),
        ("(S (NN a b))\n", "line 1: 'b' cannot stand there: a bracket holds constituents, or a part of speech and a"),
        ("(S (NN f(x)))\n", r"line 1: .*whose own brackets must be written -LRB- and -RRB-|line 1: \(x\) is empty"),
        ("(S (NP (NN a)) b)\n", "line 1: 'b' cannot stand there"),
        ("( a)\n", r"line 1: \(a\) is empty"),
        ("\n( (S (-NONE- *)))\n", "line 2: the tree holds no word"),
        ("\n\n", r"holds no tree: it must hold at least one, such as \(S"),
    ],
)
def test_bad_trees_are_refused_with_file_and_line(read, text, message):
    with pytest.raises(UserError, match=message) as refused:
        read(text, "bad.mrg")
    assert "bad.mrg" in str(refused.value)


def test_a_file_must_be_there(tmp_path):
    with pytest.raises(UserError, match=r"the file .*none.mrg does not exist"):
        list(read_trees(tmp_path / "none.mrg"))


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("(S (NN a))\n")


def test_splits_are_files_or_folders(tmp_path):
    write(tmp_path, "train/b.mrg", "train/deep/a.mrg", "train/notes.md", "validation.txt", "test.mrg")
    found = {
        split: [str(path.relative_to(tmp_path)) for path in paths] for split, paths in find_files(tmp_path).items()
    }
    assert found == {
        "train": ["train/b.mrg", "train/deep/a.mrg"],
        "validation": ["validation.txt"],
        "test": ["test.mrg"],
    }


def test_every_ending_of_trees_is_known_compressed_or_not(tmp_path):
    names = [f"{number}{ending}" for number, ending in enumerate((".mrg", ".txt", ".trees", ".ptb", ".ptb.gz"))]
    write(tmp_path, *(f"train/{name}" for name in names), "train/notes.md.gz", "validation.mrg")
    assert [path.name for path in find_files(tmp_path)["train"]] == names


def test_what_is_beside_a_file_of_trees_is_no_second_one_and_a_second_one_is_refused(tmp_path):
    write(tmp_path, "train.mrg", "train.mrg.bak", "validation.mrg")
    assert [path.name for path in find_files(tmp_path)["train"]] == ["train.mrg"]
    write(tmp_path, "train/a.mrg")
    with pytest.raises(UserError, match=r"has 'train' more than once: train.mrg, train$"):
        find_files(tmp_path)


def test_splits_are_the_papers_sections_of_the_wall_street_journal(tmp_path):
    write(tmp_path, *(f"{number:02}/wsj_{number:02}01.mrg" for number in range(25)))
    found = find_files(tmp_path)
    assert [path.parent.name for path in found["train"]] == [f"{number:02}" for number in range(2, 22)]
    assert [[path.parent.name for path in found[split]] for split in ("validation", "test")] == [["22"], ["23"]]


def test_a_treebank_without_trees_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"dataset_name='treebank:.*none' must name a folder"):
        find_files(tmp_path / "none")
    write(tmp_path, "train.txt")
    with pytest.raises(UserError, match=r"has no trees for 'validation': it must hold validation.txt, a folder valid"):
        find_files(tmp_path)


def test_a_tree_of_traces_alone_is_no_tree():
    assert prepare(Tree("S", [Tree("-NONE-", ["*"])])) is None


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the treebank sample in ../shared/data")
def test_every_tree_of_the_sample_survives_linearization():
    count = 0
    for paths in find_files(DATA).values():
        for path in paths:
            for tree in read_trees(path):
                words = [word for word, _ in tree.leaves()]
                assert restore(linearize(tree), words, is_gold=True) == (tree, 0)
                count += 1
    assert count == 3914
