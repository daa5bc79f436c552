from pathlib import Path

import pytest
from datasets import Dataset
from small_parser import SENTENCES, TREES

from training.data import corpora
from training.data.corpora import load_split, load_text
from training.settings import ROOT, DataSettings
from vaswani.errors import UserError


NOWHERE = Path("nowhere")  # the grammar's folder, which only the grammar needs


def settings(**kwargs) -> DataSettings:
    return DataSettings(**{"source_lang": "en", "target_lang": "de"} | kwargs)


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_grammar_is_whole_where_its_training_text_is_asked_for(monkeypatch):
    write_all = corpora.write_corpus
    monkeypatch.setattr(corpora, "write_corpus", lambda folder, train=30: write_all(folder, train, 4, 5))
    sizes = {split: len(load_split("grammar", None, split, ("en", "de"))) for split in corpora.SPLITS}
    assert sizes == {"train": 30, "validation": 4, "test": 5}


def test_files_are_read_in_either_direction_and_samples_limited(tmp_path):
    paths = [write(tmp_path / "pairs.tsv", "en\tde\na b\tc d\ne f\tg h\ni j\tk l\n")]
    text = load_text(settings(train_file=paths, validation_file=paths, max_train_samples=2), NOWHERE)
    assert list(text) == ["train", "validation"]
    assert text["train"]["source"][:] == ["a b", "e f"]
    files = {f"{split}_file": paths for split in ("train", "validation", "test")}
    for most, found in ((9, 3), (2, 2)):
        more = load_text(settings(**files, max_train_samples=9, max_eval_samples=most), NOWHERE)
        assert [len(rows) for rows in more.values()] == [3, found, found]
    turned = load_text(settings(source_lang="de", target_lang="en", train_file=paths, validation_file=paths), NOWHERE)
    assert text["validation"]["target"][:] == turned["validation"]["source"][:] == ["c d", "g h", "k l"]


def test_a_missing_file_dataset_configuration_split_or_language_is_named(tmp_path):
    Dataset.from_list([{"translation": {"en": "a", "de": "b"}}]).to_parquet(tmp_path / "hub/x/train-0.parquet")
    write(
        tmp_path / "hub/README.md",
        "---\nconfigs:\n- config_name: x\n  data_files:\n  - split: train\n    path: x/train-*\n"
        "- config_name: y\n  data_files:\n  - split: train\n    path: x/train-*\n---\n",
    )
    hub = str(tmp_path / "hub")
    for given, message in [
        ({"train_file": ["absent.tsv"], "validation_file": ["absent.tsv"]}, "absent.tsv does not exist"),
        ({"dataset_name": str(tmp_path / "none")}, "none' is neither a local folder nor a dataset"),
        ({"dataset_name": hub}, "dataset_config_name is missing: .* has 'x', 'y'"),
        ({"dataset_name": hub, "dataset_config_name": "z"}, "dataset_config_name='z' must be one of 'x', 'y'"),
        ({"dataset_name": hub, "dataset_config_name": "x"}, "has no split 'validation', only 'train'"),
    ]:
        with pytest.raises(UserError, match=message):
            load_text(settings(**given), NOWHERE)
    Dataset.from_list([{"en": "a", "de": "b"}]).to_parquet(tmp_path / "flat.parquet")
    paths = [str(tmp_path / "flat.parquet")]
    with pytest.raises(UserError, match="target_lang='fr' must be one of the columns of the train text: 'en', 'de'"):
        load_text(settings(target_lang="fr", train_file=paths, validation_file=paths), NOWHERE)


def test_columns_that_hold_no_text_are_refused(tmp_path):
    Dataset.from_dict({"en": ["a", "b"], "de": [1, 2]}).to_parquet(tmp_path / "numbers.parquet")
    paths = [str(tmp_path / "numbers.parquet")]
    with pytest.raises(UserError, match=r"column 'de' of the train text must hold text, but holds Value\('int64'\)"):
        load_text(settings(train_file=paths, validation_file=paths), NOWHERE)


SHARED = ROOT.parent / "shared" / "data"


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data sets are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "config", "languages", "lines"),
    [
        ("multi30k", "en-de", ("en", "de"), (29_000, 1_014, 1_000)),
        ("wmt14", "de-en", ("en", "de"), (223_859, 3_000, 3_003)),
        ("wmt14", "de-en", ("de", "en"), (223_859, 3_000, 3_003)),
        ("wmt14", "fr-en", ("en", "fr"), (751_833, 3_000, 3_003)),
    ],
)
def test_real_text_in_the_hubs_layout_is_read_in_either_direction(name, config, languages, lines):
    source, target = languages
    given = settings(
        dataset_name=str(SHARED / name), dataset_config_name=config, source_lang=source, target_lang=target
    )
    text = load_text(given, NOWHERE)
    assert tuple(len(rows) for rows in text.values()) == lines
    assert text["train"].column_names == ["source", "target"]


@pytest.fixture
def treebank(tmp_path) -> str:
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.mrg", "".join(f"{tree}\n" for tree in TREES))
    return f"treebank:{tmp_path}"


def test_parts_and_made_trees_follow_those_of_the_treebank(treebank):
    given = {"dataset_name": treebank, "target_lang": "tree"}
    plain = load_text(settings(**given), NOWHERE)
    text = load_text(settings(**given, treebank_parts=3, treebank_made=50), NOWHERE)
    assert plain["train"]["source"][:] == SENTENCES
    assert text["validation"]["target"][:] == plain["validation"]["target"][:]
    sources = text["train"]["source"][:]
    parts = ["the dog", "a cat", "sees the dog", "the dog", "drink often", "the cat '"]
    assert sources[:10] == SENTENCES + parts
    assert len(sources) == 60
    assert text["train"]["target"][6] == "(VP (VBZ) (NP (DT) (NN) )NP )VP"
    assert (
        text["train"]["target"][:]
        == load_text(settings(**given, treebank_parts=3, treebank_made=50), NOWHERE)["train"]["target"][:]
    )


def test_what_is_made_is_made_of_the_trees_that_are_used(treebank):
    given = {"dataset_name": treebank, "target_lang": "tree", "max_train_samples": 1}
    sources = load_text(settings(**given, treebank_parts=5, treebank_made=20), NOWHERE)["train"]["source"][:]
    assert len(sources) == 22
    assert {word for source in sources for word in source.split()} == {"the", "dog", "sleeps", "."}
    for alone, count in (("treebank_parts", 2), ("treebank_made", 6)):
        assert len(load_text(settings(**given | {alone: 5}), NOWHERE)["train"]) == count
