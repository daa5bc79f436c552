import os
import signal
import subprocess
import sys

import pytest
from tiny_run import ENVIRONMENT, SECONDS
from transformers import AutoTokenizer

from training import preprocess
from training.data.word_bpe import learn_codes
from training.preprocess import PAIRS_OF_A_TASK, main, tokenize_as_moses
from training.settings import ROOT
from vaswani.errors import UserError


ENGLISH = ["A “small” dog doesn't sleep.", "", "Two dogs & a cat sleep -- well-fed ones."] * 4
GERMAN = ["Ein „kleiner“ Hund schläft nicht.", "", "Zwei Hunde & eine Katze schlafen."] * 4


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """Write two pairs of files, and return the flags that prepare them."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("raw.en", ENGLISH), ("raw.de", GERMAN)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = ["--train_file", "raw.en", "raw.de", "--validation_file", "raw.en", "raw.de"]
    return [*files, "--source_lang", "en", "--target_lang", "de", "--num_merges", "15", "--output", "made/here"]


@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("en", "It’s “Rock & Roll”.", "It &apos;s &quot; Rock &amp; Roll . &quot;"),  # noqa: RUF001
        ("de", "Er sagte: „Nein.“", "Er sagte : &quot; Nein . &quot;"),
        ("de", "„Nein,“ sagt er.", "&quot; Nein &quot; , sagt er ."),
        ("en", "“No,” he says.", "&quot; No , &quot; he says ."),
        ("en_US", "“No”, he says.", "&quot; No , &quot; he says ."),
        ("DE", "„Nein,“ sagt er.", "&quot; Nein &quot; , sagt er ."),
        ("de", "z. B. 3,5 Mio. Euro", "z. B. 3,5 Mio. Euro"),
        ("en", "a well-fed dog", "a well-fed dog"),
    ],
)
def test_tokens_are_moses_after_its_punctuation(language, text, tokens):
    assert tokenize_as_moses(text, language) == tokens
    assert tokenize_as_moses(text, language, lowercase=True) == tokenize_as_moses(text.lower(), language)


def test_the_folder_has_all_that_a_run_takes(flags, tmp_path, capsys):
    main([*flags, "--lowercase"])
    folder = tmp_path / "made" / "here"
    names = {
        "bpe.codes",
        "tokenizer",
        *(f"{split}.{side}" for split in ("train", "validation") for side in ("en", "de")),
    }
    assert {path.name for path in folder.iterdir()} == names
    lines = (folder / "train.en").read_text().split("\n")
    assert lines[:3] == [
        "a &quot; small &quot; dog doesn &apos;t sleep .",
        "",
        "two dogs &amp; a cat sleep -- well-fed ones .",
    ]
    assert (folder / "validation.de").read_text() == (folder / "train.de").read_text()
    both = [line for side in ("en", "de") for line in (folder / f"train.{side}").read_text().split("\n")]
    assert (folder / "bpe.codes").read_text() == learn_codes(both, 15)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    command = [sys.executable, "-m", "subword_nmt.apply_bpe", "--codes", str(folder / "bpe.codes")]
    text = (folder / "train.de").read_text()
    theirs = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    ours = [" ".join(tokenizer.tokenize(line)) for line in text.split("\n")]
    assert [line.replace("</w>", "") for line in ours] == theirs.replace("@@", "").split("\n")
    assert "12 train, 12 validation pairs in made/here" in capsys.readouterr().out


def test_case_is_kept_unless_it_is_said_not_to_be(flags, tmp_path):
    main(flags)
    assert (tmp_path / "made/here/train.de").read_text().startswith("Ein &quot; kleiner &quot; Hund")


def test_sentences_stay_in_their_order_whoever_tokenizes_them(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(preprocess, "PAIRS_OF_A_TASK", 3)
    sides = {side: [f"{word} {number}" for number in range(10)] for side, word in (("en", "dog"), ("de", "Hund"))}
    for side, lines in sides.items():
        (tmp_path / f"raw.{side}").write_text("".join(f"{line}\n" for line in lines))
    main([*flags, "--num_merges", "2"])
    for side, lines in sides.items():
        assert (tmp_path / f"made/here/train.{side}").read_text().splitlines() == lines


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--target_lang", "xx"], "target_lang='xx' must be one of"),
        (["--source_lang", "xx"], "source_lang='xx' must be one of"),
        (["--num_merges", "99999"], "num_merges=99999 must be at most"),
        (["--num_merges", "0"], "argument --num_merges: '0' must be a whole number of at least 1"),
        (
            ["--dataset_config_name", "en-de"],
            "dataset_config_name='en-de' must be left out: train_file='raw.en raw.de'",
        ),
        (["--dataset_name", "grammar"], "exactly one of dataset_name and train_file must be given"),
        (["--output", "raw.en"], "output='raw.en' exists"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(flags, change, sentence, tmp_path):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError) as refused:
        main([*flags, *change])
    assert str(refused.value).startswith(sentence)
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "made"] == before
    assert not list(tmp_path.glob("made/*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_to_all_its_processes_leaves_nothing_and_is_told_in_a_sentence(number, flags, tmp_path):
    for name in ("raw.en", "raw.de"):
        (tmp_path / name).write_text("So many words that it takes long.\n" * 40 * PAIRS_OF_A_TASK)
    command = [sys.executable, str(ROOT / "training" / "preprocess.py"), *flags]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    for line in process.stderr:  # of the progress bar
        if "Tokenizing train" in line:
            break
    assert [path.suffix for path in (tmp_path / "made").iterdir()] == [".unfinished"]
    os.killpg(process.pid, number)
    said = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 128 + number
    assert said.endswith(f"\nEnded ({number.name}) before the work was done\n")
    assert "Traceback" not in said
    assert list((tmp_path / "made").iterdir()) == []
