import json

import pytest

from training import table3
from training.recipe import parse_settings
from training.tables import report
from training.tables.rows import ROWS
from vaswani.errors import UserError


GIVEN = ["--dataset_name", "grammar", "--source_lang", "en", "--target_lang", "de"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rows", "base,B-k15"], "unknown row 'B-k15': the nearest known one is 'B-k16'; known are base, A-h1"),
        (["--rows", ","], "rows must name at least one of base, A-h1"),
        (["--budget", "24999"], "budget=24999 target tokens do not suffice for one update .*=25,000"),
        (["--budget", "0"], "budget=0 target tokens do not suffice"),
        (["--config_name", "base-en-de"], "--config_name is no flag of the whole table: each row has its own"),
        (["--model_name_or_path=x"], "--model_name_or_path is no flag of the whole table: its rows begin with new"),
        (["--label_smoothing=0.3"], "--label_smoothing is no flag of the whole table"),
        (["--max_steps", "10"], "--max_steps is no flag of the whole table: --budget sets it"),
        (["--max_tokens", "10"], "unknown flag '--max_tokens': the nearest known one is 'max_tokens_per_"),
        (["--row", "base"], "unknown flag '--row': the nearest known one is 'rows'"),
        (["--seed=3"], "--seed is no flag of the whole table: --seeds has them all"),
        (["--seeds=3,x"], "seeds: '3,x' must be numbers with commas between"),
        (["--jobs", "0"], "jobs=0 must be at least 1"),
        (["--json"], "--json says how --list prints the rows: give both"),
        (["--scale", "0.3"], "scale=0.3 must be a multiple"),
        (["--target_lang=tree", "--list"], "target_lang='tree' must be a language, since translations are scored"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(flags, message, tmp_path):
    with pytest.raises(UserError, match=message):
        table3.main(["--rows", "base", "--output_dir", str(tmp_path / "out"), *GIVEN, *flags])
    assert not (tmp_path / "out").exists()


def test_an_output_dir_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"output_dir='.*file/out' cannot be written to: Not a directory$"):
        table3.main(["--rows", "base", *GIVEN, "--output_dir", str(tmp_path / "file" / "out")])


def test_a_list_needs_no_training(capsys):
    table3.main(["--list", "--json", "--rows", "big,base", "--budget", "5000000"])
    base, big = json.loads(capsys.readouterr().out)
    assert (base["row"], base["parameters"], base["parameters_with_40960_types"]) == ("base", 63_082_496, 65_110_016)
    assert (base["max_steps"], big["max_steps"]) == (200, 600)
    assert (base["paper_perplexity"], big["paper_bleu"]) == (4.92, 26.4)
    assert base["training_flops"] == base["flops_per_target_token"] * 5_000_000


def test_the_list_fits_a_terminal_and_names_no_two_columns_alike(capsys):
    table3.main(["--list"])
    first, second = (text.splitlines() for text in capsys.readouterr().out.split("\n\n"))
    for table in (first, second):
        assert [line.split()[0] for line in table[-len(ROWS) :]] == list(ROWS)
        assert max(map(len, table)) <= 100
    for columns in (report.ARCHITECTURE, report.COST_AND_RESULTS):
        titles = [title for title, _ in columns.values()]
        assert len(set(titles)) == len(titles)
    assert first[-len(ROWS)].split()[-3:] == ["63,082,496", "65,110,016", "65,000,000"]
    assert second[-len(ROWS)].split() == ["base", "0.1", "100,000", "3.81e+08", "9.5e+17", "3.3e+18", "4.92", "25.8"]


def test_each_run_costs_what_its_row_does(tmp_path, monkeypatch):
    def fill(described, rows, runs, options):
        costs.update((name, [run.cost for run in seeds]) for name, seeds in runs.items())
        flops.update((row.row, row.training_flops) for row in described)
        (options.output_dir / "table3.md").touch()

    costs, flops = {}, {}
    monkeypatch.setattr(table3, "fill_table", fill)
    table3.main([*GIVEN, "--rows=base,big", "--budget=5000000", "--seeds=1,2", f"--output_dir={tmp_path}"])
    assert costs == {name: [flops[name]] * 2 for name in ("base", "big")}


def test_a_run_gets_the_rows_recipe_its_share_of_the_budget_and_the_flags(tmp_path):
    given = [f"--output_dir={tmp_path}", "--budget=5000000", "--scale=0.25", "--seeds=7,8", *GIVEN]
    options, flags = table3.parse(given)
    base, big = (table3.make_run(ROWS[name], 7, options, flags) for name in ("base", "big"))
    again = table3.make_run(ROWS["base"], 8, options, flags)
    assert (again.name, again.settings.run.output_dir) == ("base-8", str(tmp_path / "base-8"))
    assert (again.settings.optimization.seed, again.settings.model) == (8, base.settings.model)
    assert (base.settings.optimization.max_steps, big.settings.optimization.max_steps) == (200, 600)
    assert (base.settings.reporting.logging_steps, base.settings.run.save_steps) == (10, 10)
    assert (big.settings.reporting.logging_steps, big.settings.run.save_steps) == (30, 30)
    assert (base.settings.run.output_dir, base.settings.optimization.seed) == (str(tmp_path / "base"), 7)
    assert big.settings.model.config_name == str(tmp_path / "configs" / "big")
    assert (big.settings.run.average_checkpoints, big.settings.run.save_total_limit) == (1, 1)
    assert parse_settings(big.arguments) == big.settings
    options, flags = table3.parse(["--budget=5000000", "--save_steps=77", *GIVEN])
    assert table3.make_run(ROWS["base"], 2017, options, flags).settings.run.save_steps == 77
