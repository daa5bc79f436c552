import json
from pathlib import Path

import pytest
from small_parser import TREES, save_parser

from training import table4
from training.tables import sweep
from training.tables.parsing.rows import Row
from training.trainer.model import load_config
from vaswani.errors import UserError


@pytest.fixture
def treebank(tmp_path) -> Path:
    folder = tmp_path / "treebank"
    folder.mkdir()
    (folder / "train.mrg").write_text("".join(tree + "\n" for tree in TREES * 2))
    for split in ("validation", "test"):
        (folder / f"{split}.mrg").write_text("".join(tree + "\n" for tree in TREES))
    return folder


def test_the_parsers_are_listed_with_their_cost(treebank, capsys):
    table4.main(["--treebank", str(treebank), "--shares", "0.5,1", "--plain", "--list", "--max_steps", "2077"])
    said = capsys.readouterr().out.splitlines()
    assert max(map(len, said)) <= 80
    lines = [line.split("  ") for line in said[1:]]  # a title has two lines
    assert [line[0].strip() for line in lines] == ["trained on", "50%", "100%", "100%, nothing made of them"]
    assert [[cell.strip() for cell in line if cell][1:3] for line in lines[1:]] == [
        ["4", "2,077"],
        ["8", "2,077"],
        ["8", "2,077"],
    ]


def test_a_run_has_recipe_treebank_folder_and_flags(treebank, tmp_path):
    options, flags = table4.parse(
        ["--treebank", str(treebank), "--output_dir", str(tmp_path / "out"), "--max_steps=2077", "--seed=3"]
    )
    run = table4.make_run(Row(0.5), options, flags)
    settings = run.settings
    assert settings.data.dataset_name == f"treebank:{tmp_path / 'out' / 'treebanks' / '50'}"
    assert (settings.run.output_dir, settings.model.config_name) == (str(tmp_path / "out" / "50"), "parser-small")
    assert (settings.optimization.max_steps, settings.optimization.seed, settings.data.target_lang) == (
        2077,
        3,
        "tree",
    )
    larger = table4.make_run(Row(0.5), options, [*flags, "--vocab_size=8000"])
    output_layer = 4000 * load_config("parser-small").d_model  # by which it is larger
    assert larger.cost - run.cost == 6 * output_layer * 2077 * settings.optimization.max_tokens_per_batch
    assert (settings.data.treebank_parts, settings.data.treebank_made) == (10, 10_000)
    options.recipe = tmp_path / "recipe.toml"
    options.recipe.write_text('model_name_or_path = "it"\nsource_lang = "en"\ntarget_lang = "tree"\n')
    with pytest.raises(UserError, match=r"^model_name_or_path='it' must not stand in the recipe"):
        table4.make_run(Row(0.5), options, flags)
    for name in ("max_train_samples", "max_eval_samples"):
        options.recipe.write_text(f'{name} = 5\nsource_lang = "en"\ntarget_lang = "tree"\n')
        with pytest.raises(UserError, match=f"^{name}=5 must not stand in the recipe: "):
            table4.make_run(Row(0.5), options, flags)
    options.recipe = table4.ROOT / "training" / "recipes" / "parser-small.toml"
    plain = table4.make_run(Row(1.0, is_plain=True), options, flags).settings
    assert (plain.data.treebank_parts, plain.data.treebank_made) == (0, 0)
    assert plain.run.output_dir == str(tmp_path / "out" / "100-plain")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shares", "x"], "shares: 'x' must be numbers with commas between"),
        (["--shares", "2", "--list"], "shares: '2' must be above 0 and at most 1"),
        (["--shares", "0.01,1", "--list"], "^shares: 0.01 must leave at least one of 8 training trees$"),
        (["--max_train_samples", "5"], "--max_train_samples is no flag of the whole table: --shares has them"),
        (["--max_eval_samples", "5"], "--max_eval_samples is no flag of the whole table: each search, and each floor"),
        (["--dataset_name", "x"], "--dataset_name is no flag of the whole table: --treebank names it"),
        (["--max_stepps", "5"], "unknown flag '--max_stepps': the nearest known one is 'max_steps'"),
    ],
)
def test_bad_flags_are_one_sentence(flags, message, treebank):
    with pytest.raises(UserError, match=message):
        table4.main(["--treebank", str(treebank), *flags])


def test_finished_parsers_are_scored_beside_the_floors(treebank, parses, tmp_path, monkeypatch, capsys):
    def train(runs, jobs, when_done):
        for run in runs:
            save_parser(run.directory / "model")
            (run.directory / "model" / "README.md").touch()
            rows = [{"step": 5, "target_tokens": 4000, "target_tokens_per_second": 500.0}, parses.to_row()]
            (run.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            noted = '[run]\nhardware = "a machine"\nprecision = "no"\ntorch = "2"\ndate = "today"\n'
            for folder in (run.directory, run.directory / "model"):
                (folder / "recipe.toml").write_text(noted)
            when_done(run)

    monkeypatch.setattr(sweep, "run_all", train)
    write, seeds = table4.write_treebank, set()
    monkeypatch.setattr(table4, "write_treebank", lambda *given: seeds.add(given[3]) or write(*given))
    output = tmp_path / "out"
    table4.main(["--treebank", str(treebank), "--output_dir", str(output), "--shares", "0.5,1", "--seed", "7"])
    assert seeds == {7}
    text = (output / "table4.md").read_text()
    for part in (
        "Scored on 4 trees of test",
        "a machine, no, torch 2, today",
        "seed 7",
        "| PCFG |",
        "| 50% | free | 4 | 8",
    ):
        assert part in text
    for search in ("free", "trees only", "trees, known tags"):
        assert text.count(f"| {search} |") == 4  # two parsers, in two tables
    assert text.count("| 73.30 |") == 2
    assert "100: F1 73.30" in capsys.readouterr().out
    assert len((output / "treebanks" / "50" / "train.mrg").read_text().splitlines()) == 4
    (treebank / "train.mrg").write_text("".join(tree + "\n" for tree in TREES * 3))
    with pytest.raises(UserError, match=r"treebanks holds texts of other data \(other train\): choose another"):
        table4.main(["--treebank", str(treebank), "--output_dir", str(output), "--shares", "0.5,1", "--seed", "7"])
