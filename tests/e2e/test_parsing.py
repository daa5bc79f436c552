"""A parser goes the whole way: trained on a treebank, resumed, published, scored, used; NLTK reads what it writes."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nltk import Tree
from tiny_run import ENVIRONMENT, PYTHON, rows
from transformers import pipeline

from training.settings import ROOT
from vaswani.cli import main


NOUN_PHRASES = ["(NP (DT the) (NN dog))", "(NP (DT a) (JJ red) (NN cat))", "(NP (PRP she))"]
VERBS = ["(VBZ sees)", "(VBZ hears)"]
ENDS = ["", "(ADVP-TMP (RB often))", "(PP-LOC (IN in) (NP (NNP Rome)))", "(SBAR (-NONE- 0))"]


def make_tree(generator: random.Random) -> str:
    """Write a sentence as the treebank does: an empty outer bracket, function tags, traces."""
    subject, item = (generator.choice(NOUN_PHRASES) for _ in range(2))
    verb_phrase = f"(VP {generator.choice(VERBS)} {item} {generator.choice(ENDS)})"
    return f"( (S {subject.replace('(NP', '(NP-SBJ', 1)} {verb_phrase} (. .)) )"


SIZES = {"attention_heads": 2, "ffn_dim": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with a treebank, a config, and a parser that learned from it: `whole`."""
    folder, generator = tmp_path_factory.mktemp("parsing"), random.Random(1)
    (folder / "treebank").mkdir()
    for split, count in (("train", 800), ("validation", 5), ("test", 10)):
        text = "".join(f"{make_tree(generator)}\n" for _ in range(count))
        (folder / "treebank" / f"{split}.mrg").write_text(text)
    config = {"model_type": "vaswani", "d_model": 32, "dropout": 0.0, "decoder_layers": 1, "encoder_layers": 1}
    config |= {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in SIZES.items()}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "whole.out").write_text(train(folder, "whole"))
    return folder


FLAGS = ["--source_lang=en", "--target_lang=tree", "--vocab_size=300", "--max_tokens_per_batch=400"]
FLAGS += ["--warmup_steps=60", "--learning_rate_factor=0.4", "--logging_steps=50", "--eval_steps=0"]
FLAGS += ["--treebank_parts=4", "--treebank_made=50", "--curriculum_epochs=2", "--curriculum_length=12"]
FLAGS += ["--save_steps=50", "--save_total_limit=2", "--mixed_precision=no", "--attn_implementation=eager"]


def train(folder: Path, name: str, *flags: str, steps: int = 200, averaged: int = 2) -> str:
    line = [*PYTHON, str(ROOT / "training" / "run.py"), f"--dataset_name=treebank:{folder / 'treebank'}", *FLAGS]
    line += [f"--config_name={folder}", f"--output_dir={folder / name}", f"--max_steps={steps}"]
    return run(folder, *line, f"--average_checkpoints={averaged}", *flags)


def run(folder: Path, *line: str) -> str:
    done = subprocess.run(line, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_resumed_parser_equals_one_that_was_not_interrupted(folder):
    train(folder, "halves", steps=100, averaged=1)
    train(folder, "halves", "--resume_from_checkpoint=latest")
    weights = [(folder / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "halves")]
    assert weights[0] == weights[1]
    assert rows(folder / "whole")[-1] == rows(folder / "halves")[-1]


def test_it_learned_and_says_so_in_the_rows_and_on_the_card(folder):
    final = rows(folder / "whole")[-1]
    assert (final["split"], final["averaged_checkpoints"], final["evalb_errors"]) == ("test", 2, 0)
    assert (final["well_formed"], final["decoding"]) == (100.0, "beam 4, alpha 0.6, trees only")
    assert final["bracketing_f1"] > 70
    assert "Learns to parse en: vaswani model" in (folder / "whole.out").read_text()
    assert final["tagging_accuracy"] > 70
    card = (folder / "whole" / "model" / "README.md").read_text()
    assert f"| {final['bracketing_f1']} |" in card
    assert 'pipeline("parse"' in card


def test_evaluate_finds_the_score_of_the_run_again(folder, capsys):
    model = ["--model", str(folder / "whole" / "model"), "--no_record", "--json"]
    where = ["--dataset_name", f"treebank:{folder / 'treebank'}", "--split", "test"]
    assert main(["evaluate", *model, *where]) == 0
    again, final = json.loads(capsys.readouterr().out), rows(folder / "whole")[-1]
    for name in ("bracketing_f1", "tagging_accuracy", "well_formed", "exact_match", "bracketing_f1_by_length"):
        assert again[name] == final[name]


def test_files_that_it_parses_are_read_by_nltk_and_scored_the_same(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    lines = (folder / "treebank" / "test.mrg").read_text().splitlines()
    gold = [[word for word, tag in Tree.fromstring(line[2:-2]).pos() if tag != "-NONE-"] for line in lines]
    words = "".join(f"{' '.join(sentence)}\n" for sentence in gold)
    Path("words").write_text(words)
    files = ["--input", "words", "--output", "parsed.mrg", "--input_form", "words", "--quiet"]
    assert main(["parse", "--model", "whole/model", *files]) == 0
    parsed = [Tree.fromstring(line) for line in Path("parsed.mrg").read_text().splitlines()]
    assert [tree.leaves() for tree in parsed] == gold
    files = ["--hypothesis", "parsed.mrg", "--reference", "treebank/test.mrg", "--target_lang", "tree", "--json"]
    assert main(["evaluate", *files]) == 0
    assert json.loads(capsys.readouterr().out)["bracketing_f1"] == rows(folder / "whole")[-1]["bracketing_f1"]


def test_the_line_that_the_run_prints_parses(folder):
    line = re.search(r"^  (import vaswani.*)$", (folder / "whole.out").read_text(), re.MULTILINE)[1]
    assert "'tree': '(" in run(folder, sys.executable, "-c", line)
    parser = pipeline("parse", model=str(folder / "whole" / "model"))
    assert parser("The dog sees her.")[0]["tree"].endswith("(. .))")
