import datasets
import pytest
from datasets import Dataset, Value
from huggingface_hub import constants

from vaswani.errors import UserError
from vaswani.text.hub import as_source_and_target, load_dataset, load_split


@pytest.fixture
def folder(tmp_path):
    for name in ("de-en", "fr-en"):
        (tmp_path / name).mkdir()
        rows = Dataset.from_dict({"translation": [{name[:2]: "eins", "en": "one"}] * 3})
        rows.to_parquet(tmp_path / name / "validation-00000-of-00001.parquet")
    entries = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: validation\n    path: {name}/validation-*\n"
        for name in ("de-en", "fr-en")
    )
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{entries}---\n")
    return str(tmp_path)


def test_a_split_of_a_configuration_is_read_with_its_languages_in_order(folder):
    rows = load_split(folder, "de-en", "validation", ("en", "de"))
    assert (rows.column_names, len(rows), rows[0]) == (["source", "target"], 3, {"source": "one", "target": "eins"})
    assert load_split(folder, "fr-en", "validation", ("fr", "en"))[0] == {"source": "eins", "target": "one"}


@pytest.mark.parametrize(
    ("name", "config", "split", "languages", "sentence"),
    [
        (None, None, "validation", ("en", "de"), "dataset_config_name is missing: .* has 'de-en', 'fr-en'"),
        (None, "xx", "validation", ("en", "de"), "dataset_config_name='xx' must be one of 'de-en', 'fr-en' of"),
        (None, "de-en", "test", ("en", "de"), "has no split 'test', only 'validation'"),
        (None, "de-en", "validation", ("en", "fr"), "target_lang='fr' must be one of the columns .*: 'de', 'en'"),
        (None, "de-en", "validation", ("xx", "de"), "source_lang='xx' must be one of the columns"),
        (None, "de-en", "validation", ("de", "de"), "source_lang and target_lang are both 'de': they must differ"),
        ("no/where", None, "validation", ("en", "de"), "dataset_name='no/where' is neither a local folder nor"),
    ],
)
def test_whatever_is_missing_is_named(folder, name, config, split, languages, sentence, monkeypatch):
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)  # so that nothing is asked for again and again
    with pytest.raises(UserError, match=sentence):
        load_split(name or folder, config, split, languages)


def test_a_dataset_of_one_configuration_needs_no_name(tmp_path):
    Dataset.from_dict({"en": ["one"], "de": ["eins"]}).to_csv(tmp_path / "train.csv")
    assert load_dataset(str(tmp_path), None)["train"].num_rows == 1


@pytest.mark.parametrize(("ending", "sep"), [("csv", ","), ("tsv", "\t")])
def test_words_that_pandas_takes_for_missing_ones_are_text(ending, sep, tmp_path):
    lines = [["en", "de"], ["None", "n/a"], ["null", "nan"], ["NA", ""], ["two", "zwei"]]
    (tmp_path / f"train.{ending}").write_text("".join(sep.join(line) + "\n" for line in lines))
    rows = load_split(str(tmp_path), None, "train", ("en", "de"))
    assert rows["source"][:] == ["None", "null", "NA", "two"]
    assert [sentence or "" for sentence in rows["target"]] == ["n/a", "nan", "", "zwei"]


def test_a_dataset_that_is_damaged_or_cannot_be_kept_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "train.jsonl").write_text('{"en": "one", "de": "eins"}\n{"en": "two", \n')
    with pytest.raises(UserError, match=f"^dataset_name='{tmp_path}' cannot be read: JSON parse error: "):
        load_dataset(str(tmp_path), None)
    (tmp_path / "train.jsonl").unlink()
    for number, language in enumerate(("en", "english")):
        (tmp_path / f"train-{number}.csv").write_text(f"{language},de\none,eins\n")
    with pytest.raises(UserError, match=r"^dataset_name=.* cannot be read: .*") as error:
        load_dataset(str(tmp_path), None)
    assert "\n" not in str(error.value)

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(UserError, match=r"^the data cannot be prepared in .*: .*No space left on device"):
        load_dataset(str(tmp_path), None)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("test.jsonl", 'Instruction "test" corresponds to no data!'),
        ("train.jsonl", "StopIteration"),
        ("train.parquet", "Parquet file size is 0 bytes"),
    ],
)
def test_an_empty_file_of_a_dataset_is_one_sentence(name, reason, tmp_path):
    (tmp_path / "validation.jsonl").write_text('{"en": "one", "de": "eins"}\n')
    if name.endswith(".parquet"):
        (tmp_path / "validation.jsonl").unlink()
    (tmp_path / name).touch()
    with pytest.raises(UserError) as refused:
        load_dataset(str(tmp_path), None)
    assert str(refused.value).startswith(f"dataset_name='{tmp_path}' cannot be read: {reason}")
    assert str(refused.value).endswith(f"; empty: {tmp_path / name}")


@pytest.mark.parametrize("kind", ["large_string", "null"])
def test_text_may_be_large_or_missing(kind):
    rows = Dataset.from_dict({"en": ["one"], "de": [None]}).cast_column("de", Value(kind))
    assert as_source_and_target(rows, "test", ("en", "de"))[0] == {"source": "one", "target": None}


def test_a_column_must_hold_text():
    rows = Dataset.from_dict({"en": ["one"], "de": [1]}).cast_column("de", Value("int64"))
    with pytest.raises(UserError, match="the column 'de' of the test text must hold text, but holds Value"):
        as_source_and_target(rows, "test", ("en", "de"))
