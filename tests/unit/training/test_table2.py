"""The command that fills Table 2."""

import csv

import pytest

from training import table2
from training.tables import sweep as sweep_of_runs
from training.tables.systems.translations import Decoding
from training.trainer.loop import NOT_FINITE
from vaswani.errors import UserError


GIVEN = ["--dataset_name", "grammar", "--source_lang", "en", "--target_lang", "de"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--systems", "recurrent,tranformer"], "unknown system 'tranformer': the nearest known one is 'transformer'"),
        (["--systems", ","], "systems must name at least one of recurrent"),
        (["--flops", "1e9"], "does not suffice for one update of 'recurrent'"),
        (["--target_tokens", "24999"], "target_tokens=24999 does not suffice for one update"),
        (["--flops", "0"], "flops: '0' must be a number above 0"),
        (["--minutes", "-1"], "minutes: '-1' must be a number above 0"),
        (["--flops", "1e18", "--minutes", "5"], "not allowed with argument"),
        (["--search_share", "1.5"], "search_share: '1.5' must be above 0 and at most 1"),
        (["--seeds", "one"], "seeds: 'one' must be numbers with commas between"),
        (["--learning_rate_factors", ","], "learning_rate_factors: ',' must be numbers with commas between"),
        (["--seed", "1"], "--seed is no flag of the whole table: --seeds has them all"),
        (["--config_name", "base-en-de"], "--config_name is no flag of the whole table: each system has its own"),
        (["--max_steps=5"], "--max_steps is no flag of the whole table: it follows from --flops"),
        (["--early_stopping_patience=3"], "is no flag of the whole table: every system gets all of the budget"),
        (["--flop", "1e18"], "unknown flag '--flop': the nearest known one is 'flops'"),
        (["--jobs", "0"], "jobs=0 must be at least 1"),
        (["--scale", "0.3"], "scale=0.3 must be a multiple"),
        (["--target_lang=tree", "--list"], "target_lang='tree' must be a language, since translations are scored"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(flags, message, tmp_path):
    with pytest.raises(UserError, match=message):
        table2.main(["--systems", "recurrent", "--output_dir", str(tmp_path / "out"), *GIVEN, *flags])
    assert not (tmp_path / "out").exists()


def test_a_list_needs_no_training_and_fits_a_terminal(capsys):
    table2.main(["--list", "--flops", "1e18"])
    names, costs = (text.splitlines() for text in capsys.readouterr().out.split("\n\n"))
    for lines in (names, costs):
        assert [line.split()[0] for line in lines[-4:]] == list(table2.SYSTEMS)
        assert max(map(len, lines)) <= 80
    assert all(line.endswith("1.0e+18") for line in costs[-4:])


def test_numbers_are_read_once_each_in_their_order():
    options, flags = table2.parse(["--seeds", "3, 1,3", "--learning_rate_factors=0.5,1", "--warmup_steps=3"])
    assert (options.seeds, options.learning_rate_factors, flags) == ([3, 1], [0.5, 1.0], ["--warmup_steps=3"])


@pytest.fixture
def sweep(finish, monkeypatch):
    """Return all that is trained, in turns: search runs end with a perplexity that is best at factor 1, or diverge."""
    turns = []

    def run_all(runs, jobs, when_done):
        turns.append([run.name for run in runs])
        for run in runs:
            factor = run.settings.optimization.learning_rate_factor
            if factor > 2:
                run.error = f"error: 20 updates in a row {NOT_FINITE}, the last at step 25"
            elif not run.is_finished:
                finish(run, 5.0 + abs(factor - best[run.name.split("-")[0]]))
            when_done(run)
        failed = [run for run in runs if run.error]
        if failed:
            raise UserError(f"{len(failed)} of {len(runs)} failed")

    best = {"recurrent": 2.0, "transformer": 0.5}
    monkeypatch.setattr(sweep_of_runs, "run_all", run_all)
    return turns


def test_the_search_ends_where_a_rate_is_worse_or_diverges(sweep, make_plan, capsys):
    plan = make_plan()
    table2.search(plan, jobs=1)
    assert sweep == [
        [f"{system}-search-{factor}" for system in ("recurrent", "transformer") for factor in ("0.5", "1", "2")],
        ["recurrent-search-4", "transformer-search-0.25"],
    ]
    plan.choose()
    assert [entry.factor for entry in plan.entries] == [2.0, 0.5]
    assert "recurrent-search-2: perplexity 5.00 on validation" in capsys.readouterr().out


def test_a_search_that_fails_for_another_reason_ends_the_comparison(make_plan, monkeypatch):
    def run_all(runs, jobs, when_done):
        runs[0].error = "RuntimeError: out of memory"
        raise UserError("1 of 6 failed")

    monkeypatch.setattr(sweep_of_runs, "run_all", run_all)
    with pytest.raises(UserError, match="1 of 6 failed"):
        table2.search(make_plan(), jobs=1)


def test_what_was_searched_is_trained_translated_and_written_down(sweep, make_plan, tmp_path, monkeypatch):
    decoded = []

    def decode(run, text):
        decoded.append(run.name)
        return Decoding(list(text.references), tokens=10, seconds=2.0)

    scored_as, collect = set(), table2.collect
    monkeypatch.setattr(
        table2, "collect", lambda *given: scored_as.add((given[1].split, *given[3:])) or collect(*given)
    )
    monkeypatch.setattr(table2, "decode", decode)
    plan = make_plan("--source_lang=en", "--target_lang=de", "--max_eval_samples=20", "--tokenized=true")
    table2.compare_systems(plan)
    final = ["recurrent-1", "recurrent-2", "transformer-1", "transformer-2"]
    assert sweep[-1] == decoded == final
    with (tmp_path / "table2.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["system"], row["seed"], row["learning_rate_factor"]) for row in rows] == [
        ("recurrent", "1", "2.0"),
        ("recurrent", "2", "2.0"),
        ("transformer", "1", "0.5"),
        ("transformer", "2", "0.5"),
    ]
    assert scored_as == {("test", "de", True)}
    assert {row["sacrebleu"] for row in rows} == {"100.0"}
    assert "4 of 4 runs are finished." in (tmp_path / "table2.md").read_text()
    assert (tmp_path / "configs" / "recurrent" / "config.json").exists()
