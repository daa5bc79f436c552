"""`vaswani shortlist` within this process, for a model of random weights; tests/e2e/test_translate.py uses one."""

import re
import resource
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from small_parser import save_parser

import vaswani.cli.shortlist as command
from vaswani import cli
from vaswani.shortlists.alignment import align
from vaswani.shortlists.sampling import sample
from vaswani.shortlists.shortlist import FILE, Shortlist
from vaswani.tokenization import train_tokenizer


ENGLISH = ["one two", "three", "one", "", "two four one"]
GERMAN = ["five six", "two", "five", "one", "six three five"]
FILES = ["--model", "model", "--source", "train.x", "--target", "train.y"]


@pytest.fixture(autouse=True)
def tokenizer(random_model, tiny_config, tmp_path, monkeypatch):
    """Work in a folder with a model in `model`, whose tokenizer is returned, and five pairs."""
    monkeypatch.chdir(tmp_path)
    random_model(tiny_config(vocab_size=265, source_lang="en", target_lang="de")).save_pretrained("model")
    tokenizer = train_tokenizer(["one two three four five six"], 265)
    tokenizer.save_pretrained("model")
    Path("train.x").write_text("\n".join(ENGLISH) + "\n")
    Path("train.y").write_text("\n".join(GERMAN) + "\n")
    return tokenizer


def as_lists(shortlist: Shortlist) -> tuple:
    return shortlist.candidates.tolist(), shortlist.by_frequency.tolist(), shortlist.frequent


def test_it_writes_what_the_parts_make(tokenizer, capsys):
    assert cli.main(["shortlist", *FILES, "--per_source", "7", "--frequent", "3"]) == 0
    pairs, counts = sample(tokenizer, Dataset.from_dict({"source": ENGLISH, "target": GERMAN}))
    expected = Shortlist.build(tokenizer, align(pairs, 265, command.ITERATIONS), counts, 7, 3)
    assert as_lists(Shortlist.load("model", tokenizer)) == as_lists(expected)
    said = capsys.readouterr()
    assert said.out == ""
    assert "Encoding: 100%" in said.err
    assert "Aligning: 100%" in said.err
    assert said.err.splitlines()[-1].startswith(
        "Wrote model/shortlist.safetensors, learned from 4 of 5 pairs. In the "
    )


def test_defaults_are_fifty_candidates_and_two_hundred_frequent_tokens(tokenizer, capsys):
    assert cli.main(["shortlist", *FILES, "--quiet"]) == 0
    made = Shortlist.load("model", tokenizer)
    assert (made.candidates.shape[1], made.frequent) == (50, 200)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_columns_and_tokenizer_may_be_others_than_the_models(tokenizer, capsys):
    assert cli.main(["shortlist", *FILES, "--quiet"]) == 0
    expected = as_lists(Shortlist.load("model", tokenizer))
    share = float(re.search(r"and ([\d.]+)% of the target tokens", capsys.readouterr().err)[1])
    assert 50 < share <= 100
    tokenizer.save_pretrained("elsewhere")
    Path("model", "tokenizer.json").unlink()
    Path("data").mkdir()
    columns = {"en": ["six"] * 5, "de": ["six"] * 5, "x": ENGLISH, "y": GERMAN}
    Dataset.from_dict(columns).to_parquet("data/train-00000-of-00001.parquet")
    flags = ["--dataset_name", "data", "--source_lang", "x", "--target_lang", "y", "--tokenizer", "elsewhere"]
    assert cli.main(["shortlist", "--model", "model", *flags, "--quiet"]) == 0
    assert as_lists(Shortlist.load("model", tokenizer)) == expected


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_dataset_gives_the_same_as_files(split, tokenizer):
    assert cli.main(["shortlist", *FILES, "--quiet"]) == 0
    expected = as_lists(Shortlist.load("model", tokenizer))
    Path("model", FILE).unlink()
    other = {"train": "validation", "validation": "train"}[split]
    rows = DatasetDict(
        {
            split: Dataset.from_dict({"en": ENGLISH, "de": GERMAN}),
            other: Dataset.from_dict({"en": ["six"], "de": ["six"]}),
        }
    )
    for name, table in rows.items():
        Path("data").mkdir(exist_ok=True)
        table.to_parquet(f"data/{name}-00000-of-00001.parquet")
    flags = ["--model", "model", "--dataset_name", "data", "--quiet"]
    assert cli.main(["shortlist", *flags, *([] if split == "train" else ["--split", split])]) == 0
    assert as_lists(Shortlist.load("model", tokenizer)) == expected


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model", "me/elsewhere"], "model='me/elsewhere' must be a folder: the shortlist is written into it"),
        (FILES[:2], "either dataset_name or source and target must be given: what is learned from?"),
        ([*FILES, "--dataset_name", "x"], "either dataset_name or source and target must be given"),
        (FILES[:4], "source and target must be given both: they are the two sides of a text"),
        ([*FILES, "--split", "test"], "split='test' is for a dataset, but dataset_name is not given"),
        ([*FILES, "--target_lang", "de"], "target_lang='de' is for a dataset, but dataset_name is not given"),
        ([*FILES, "--per_source", "0"], "argument --per_source: '0' must be a whole number of at least 1"),
        (
            [*FILES, "--per_source", "257"],
            "per_source=257 must be at most 256: it learns of no more candidates",
        ),
        ([*FILES[:-1], "elsewhere"], "the file elsewhere does not exist"),
        ([*FILES[:-1], "short"], "train.x has 5 lines but short has 1"),
        ([*FILES[:2], "--source", "t.de", "--target", "t.en"], "first must hold 'en' and the second 'de'"),
        (["--model", "parser", *FILES[2:]], "model='parser' is a parser: a shortlist is for translations"),
    ],
)
def test_what_does_not_go_is_refused_in_a_sentence(flags, sentence, capsys):
    Path("short").write_text("one\n")
    save_parser(Path("parser"))
    assert cli.main(["shortlist", *flags]) == 1
    [said] = capsys.readouterr().err.splitlines()
    assert sentence in said
    assert not Path("model", FILE).exists()


def test_a_model_without_languages_needs_them_named(random_model, tiny_config, capsys):
    random_model(tiny_config(vocab_size=265)).save_pretrained("model")
    assert cli.main(["shortlist", "--model", "model", "--dataset_name", "data"]) == 1
    assert "source_lang and target_lang must be given: the model does not know its" in capsys.readouterr().err


def test_a_full_disk_is_told_in_a_sentence_and_the_folder_stays_as_it_was(capsys):
    assert cli.main(["shortlist", *FILES, "--quiet", "--per_source", "7"]) == 0
    before = {path.name: path.read_bytes() for path in Path("model").iterdir()}
    capsys.readouterr()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))  # writing more fails as on a full disk
    try:
        assert cli.main(["shortlist", *FILES, "--quiet"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("error: model='model' cannot be written to: ")
    assert {path.name: path.read_bytes() for path in Path("model").iterdir()} == before
