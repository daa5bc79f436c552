import json
from pathlib import Path

import pytest
from datasets import Dataset

from training.reading import load_text, read_files
from training.settings import TrainingSettings, UserError


PAIRS = [
    ("a b", "c d"),
    ("line\u2028inside", 'quote " tab-free'),
    ("  spaced ", "ümlaut 👩‍👩‍👧"),
    ("", "empty source"),
]


def settings(**kwargs) -> TrainingSettings:
    return TrainingSettings(**{"source_lang": "en", "target_lang": "de"} | kwargs)


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return str(path)


def write_all_forms(folder: Path) -> dict[str, list[str]]:
    """Write the same pairs in every form that is read."""
    sources, targets = ("".join(side + "\n" for side in sides) for sides in zip(*PAIRS, strict=True))
    rows = [{"en": source, "de": target} for source, target in PAIRS]
    Dataset.from_list(rows).to_parquet(folder / "flat.parquet")
    Dataset.from_list([{"translation": row} for row in rows]).to_parquet(folder / "nested.parquet")
    tsv = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    reversed_tsv = "de\ten\n" + "".join(f"{target}\t{source}\n" for source, target in PAIRS)
    english, german = write(folder / "text.en", sources), write(folder / "text.de", targets)
    return {
        "tsv": [write(folder / "plain.tsv", tsv)],
        "tsv with a header": [write(folder / "header.tsv", reversed_tsv)],
        "tsv of Windows": [write(folder / "windows.tsv", "\ufeff" + tsv.replace("\n", "\r\n"))],
        "jsonl": [write(folder / "flat.jsonl", "".join(json.dumps(row) + "\n" for row in rows))],
        "jsonl nested": [write(folder / "n.jsonl", "".join(json.dumps({"translation": row}) + "\n" for row in rows))],
        "parquet": [str(folder / "flat.parquet")],
        "parquet nested": [str(folder / "nested.parquet")],
        "two files": [english, german],
        "two files, known by their endings": [german, english],
        "two files, in order": [write(folder / "a.txt", sources), write(folder / "b.txt", targets)],
    }


def test_every_form_of_ones_own_files_gives_the_same_pairs(tmp_path):
    for form, paths in write_all_forms(tmp_path).items():
        text = load_text(settings(train_file=paths, validation_file=paths))
        assert list(text) == ["train", "validation"], form
        assert list(zip(text["train"]["source"], text["train"]["target"], strict=True)) == PAIRS, form


def test_the_direction_can_be_turned_and_samples_limited(tmp_path):
    paths = write_all_forms(tmp_path)["jsonl"]
    turned = settings(source_lang="de", target_lang="en", train_file=paths, validation_file=paths, max_train_samples=2)
    text = load_text(turned)
    assert text["train"]["source"][:] == [target for _, target in PAIRS[:2]]
    assert len(text["validation"]) == len(PAIRS)


def test_an_empty_file_is_named(tmp_path):
    paths = [write(tmp_path / "empty.tsv", "")]
    with pytest.raises(UserError, match=r"empty\.tsv holds no pair"):
        load_text(settings(train_file=paths, validation_file=paths))


def test_a_changed_file_is_read_again(tmp_path):
    for text in ("one\teins\n", "two\tzwei\nthree\tdrei\n"):
        path = write(tmp_path / "file.tsv", text)
        assert len(read_files([path], settings())) == text.count("\n")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.en": "1\n2\n", "a.de": "1\n"}, "a.en has 2 lines but .*a.de has 1"),
        ({"a.tsv": "x\ty\nonly one\n"}, "a.tsv has 1 columns in line 2"),
        ({"a.tsv": b"x\ty\nx\t\xff\n"}, "a.tsv is not UTF-8 in line 2"),
        ({"a.jsonl": '{"en": "x", "de": "y"}\n{"en": "x"}\n'}, "a.jsonl has no key 'de' in line 2"),
        ({"a.jsonl": "{\n"}, "a.jsonl has no JSON object in line 1"),
        ({"a.csv": "x,y\n"}, "a.csv must end in .tsv"),
        ({"a.en": "x\n", "a.de": "x\n", "b.de": "x\n"}, "3 files given"),
    ],
)
def test_bad_files_are_one_clear_sentence(tmp_path, files, message):
    paths = [write(tmp_path / name, text) for name, text in files.items()]
    with pytest.raises(UserError, match=message):
        read_files(paths, settings())


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
            load_text(settings(**given))
    paths = write_all_forms(tmp_path)["parquet"]
    with pytest.raises(UserError, match="target_lang='fr' must be one of the columns of the train text: 'en', 'de'"):
        load_text(settings(target_lang="fr", train_file=paths, validation_file=paths))


def test_columns_that_hold_no_text_are_refused(tmp_path):
    Dataset.from_dict({"en": ["a", "b"], "de": [1, 2]}).to_parquet(tmp_path / "numbers.parquet")
    paths = [str(tmp_path / "numbers.parquet")]
    with pytest.raises(UserError, match=r"column 'de' of the train text must hold text, but holds Value\('int64'\)"):
        load_text(settings(train_file=paths, validation_file=paths))


SHARED = Path(__file__).parents[3] / "shared" / "data"


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
    text = load_text(given)
    assert tuple(len(rows) for rows in text.values()) == lines
    assert text["train"].column_names == ["source", "target"]
