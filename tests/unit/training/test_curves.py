import json

import pytest
from datasets import Dataset, DatasetDict

from training import curves
from training.settings import ROOT
from training.tables import sweep
from vaswani.errors import UserError


RECIPE = ["--recipe", str(ROOT / "training" / "recipes" / "demo.toml")]


def test_the_runs_are_listed(capsys):
    curves.main([*RECIPE, "--shares", "0.5", "--configs", "demo,multi30k-en-de", "--max_steps=2077", "--list"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["demo-50", "demo", "0.5", "2,077"],
        ["demo-100", "demo", "1", "2,077"],
        ["multi30k-en-de-100", "multi30k-en-de", "1", "2,077"],
    ]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--shares", "x"], "argument --shares: 'x' must be numbers with commas between"),
        (["--eval_steps", "0"], "eval_steps=0 must be from 1 to "),
        (
            ["--eval_steps=360", "--max_steps=360"],
            "eval_steps=360 must be from 1 to 359: a learning curve",
        ),
        (["--config_name", "demo"], "--config_name is no flag of the whole table: --configs names the models"),
        (["--max_stepps", "5"], "unknown flag '--max_stepps': the nearest known one is 'max_steps'"),
        (["--jobs", "99"], "jobs=99 must be at least 1"),
        (["--target_lang=tree", "--list"], "target_lang='tree' must be a language, since translations are scored"),
    ],
)
def test_bad_flags_are_one_sentence(flags, sentence):
    with pytest.raises(UserError) as refused:
        curves.main([*RECIPE, *flags])
    assert str(refused.value).startswith(sentence)


def test_a_recipe_that_starts_from_a_model_is_refused(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('model_name_or_path = "it"\ndataset_name = "x"\nsource_lang = "en"\ntarget_lang = "de"\n')
    with pytest.raises(UserError, match=r"^model_name_or_path='it' must not stand in the recipe: all runs begin with"):
        curves.main(["--recipe", str(recipe), "--list"])


def test_finished_runs_are_drawn_as_they_come(tmp_path, monkeypatch, capsys):
    sides = {
        name: Dataset.from_dict({"source": ["a"] * 8, "target": ["b"] * 8}) for name in ("train", "validation", "test")
    }
    monkeypatch.setattr(curves, "load_text", lambda data, folder: DatasetDict(sides))

    def train(runs, jobs, when_done):
        for number, run in enumerate(runs):
            (run.directory / "model").mkdir(parents=True)
            (run.directory / "model" / "README.md").touch()
            row = {"step": 5, "target_tokens": 4000, "target_tokens_per_second": 500.0}
            scores = {"sacrebleu": 20.0 + number, "chrf": 40.0, "nll": 1.5}
            rows = [row, *(scores | {"step": 5, "split": split} for split in ("validation", "validation", "test"))]
            (run.directory / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
            noted = '[run]\nhardware = "a machine"\nprecision = "no"\ntorch = "2"\ndate = "today"\n'
            for folder in (run.directory, run.directory / "model"):
                (folder / "recipe.toml").write_text(noted)
            when_done(run)

    monkeypatch.setattr(sweep, "run_all", train)
    output = tmp_path / "out"
    curves.main([*RECIPE, "--shares", "0.5", "--output_dir", str(output), "--seed", "7"])
    text = (output / "curves.md").read_text()
    for part in ("a machine, no, torch 2, today", "seed 7", "2 of 2 runs are finished", "| 21.00 | 21.00 | 40.00 |"):
        assert part in text
    assert "| training pairs | BLEU | +1.00 | +1.00 | 2 times as many |" in text
    assert "demo-50: BLEU 20.00 on test" in capsys.readouterr().out
    assert (output / "texts" / "train-50.parquet").exists()
