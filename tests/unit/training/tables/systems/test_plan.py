"""How systems are compared: what each may cost, what it tries, what it is trained on."""

import pytest

from training.recipe import parse_settings
from training.tables.cost import flops_per_target_token
from training.tables.scaling import scale_config
from training.tables.systems.catalogue import SYSTEMS
from vaswani.errors import UserError


def test_every_system_gets_the_same_flops(make_plan):
    for entry in make_plan().entries:
        config = scale_config(entry.system.config, 0.125)
        config.vocab_size = 400
        assert entry.flops_per_target_token == flops_per_target_token(config)
        cost = 1000 * entry.flops_per_target_token
        assert entry.steps == int(1e13 / cost)
        assert entry.flops(entry.steps) == pytest.approx(1e13, rel=1e-2)


def test_or_the_same_target_tokens_or_what_the_transformers_recipe_costs(make_plan):
    assert [entry.steps for entry in make_plan(flops=None, target_tokens=7999, search_share=1.0).entries] == [7, 7]
    recurrent, transformer = make_plan(flops=None).entries
    assert transformer.steps == 100_000
    assert recurrent.flops(recurrent.steps) == pytest.approx(transformer.flops(100_000), rel=1e-3)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"flops": 1e6},
            r"flops=1e\+06 does not suffice for one update of 'recurrent', which has 1,000 target tokens",
        ),
        ({"flops": None, "target_tokens": 999}, "target_tokens=999 does not suffice for one update of 'recurrent'"),
    ],
)
def test_a_budget_too_small_for_one_update_is_refused(given, sentence, make_plan):
    with pytest.raises(UserError, match=sentence):
        make_plan(**given)


def test_a_time_is_turned_into_updates_by_the_speed_of_a_short_run(make_plan, finish):
    plan = make_plan("--logging_steps=7", "--max_eval_samples=99", flops=None, minutes=2.0)
    assert [entry.steps for entry in plan.entries] == [None, None]
    timed = plan.runs_to_time()
    assert [run.settings.optimization.max_steps for run in timed] == [30, 30]
    assert [run.settings.reporting.logging_steps for run in timed] == [10, 10]  # not the rate of the fastest update
    assert all(parse_settings(run.arguments) == run.settings for run in timed)
    finish(timed[0], 9.0, speed=500.0)
    finish(timed[1], 9.0, speed=1500.0)
    plan.set_steps(timed)
    assert [entry.steps for entry in plan.entries] == [120, 360]  # 120 s at 1,000 and 3,000 tokens a second
    plan.options.minutes = 0.25
    with pytest.raises(
        UserError, match=r"search_share=0\.1 lets 'recurrent' try each learning rate for 1 updates, whi"
    ):
        plan.set_steps(timed)
    plan.options.minutes = 0.001
    with pytest.raises(UserError, match=r"minutes=0.001 does not suffice for one update of 'recurrent', which trains"):
        plan.set_steps(timed)
    assert make_plan().runs_to_time() == []


def test_the_search_tries_each_rate_for_its_share_and_the_lowest_perplexity_wins(make_plan, finish):
    plan = make_plan()
    tried = plan.plan_search()
    assert [run.name for run in tried][:3] == ["recurrent-search-0.5", "recurrent-search-1", "recurrent-search-2"]
    for entry in plan.entries:
        for run, factor in zip(entry.search.values(), (0.5, 1.0, 2.0), strict=True):
            assert run.settings.optimization.learning_rate_factor == factor
            assert run.settings.optimization.max_steps == int(0.1 * entry.steps)
            assert run.settings.data.max_eval_samples == 300
            assert run.cost == entry.flops(int(0.1 * entry.steps))
    for run, perplexity in zip(tried, (9.0, 5.0, 7.0, 6.0, 4.0, 5.0), strict=True):
        finish(run, perplexity)
    assert plan.plan_search() == []
    plan.choose()
    assert [entry.factor for entry in plan.entries] == [1.0, 1.0]


def test_the_search_evaluates_as_the_user_says(make_plan):
    [run, *_] = make_plan("--max_eval_samples=20", "--eval_steps=7").plan_search()
    assert (run.settings.data.max_eval_samples, run.settings.run.eval_steps) == (20, 7)
    [run, *_] = make_plan().plan_search()
    assert (run.settings.data.max_eval_samples, run.settings.run.eval_steps) == (300, 0)


def test_the_search_goes_on_beyond_an_edge_that_is_the_best(make_plan, finish):
    plan = make_plan()
    for run, perplexity in zip(plan.plan_search(), (9.0, 8.0, 7.0, 4.0, 6.0, 5.0), strict=True):
        finish(run, perplexity)
    tried = plan.plan_search()
    assert [run.name for run in tried] == ["recurrent-search-4", "transformer-search-0.25"]
    assert tried[1].settings.optimization.learning_rate_factor == 0.25
    finish(tried[0], 6.0)  # better still
    finish(tried[1], 4.5)
    [last] = plan.plan_search()
    assert last.name == "recurrent-search-8"
    finish(last, 6.5)
    assert plan.plan_search() == []
    plan.choose()
    assert [entry.factor for entry in plan.entries] == [4.0, 0.5]


def test_a_search_must_go_beyond_the_warm_up(make_plan):
    steps = make_plan().entries[0].steps
    make_plan(f"--warmup_steps={steps // 10 - 1}", systems="recurrent")
    with pytest.raises(
        UserError, match=rf"search_share=0.1 lets 'recurrent' try .* {steps // 10:,} updates, which must"
    ):
        make_plan(f"--warmup_steps={steps // 10}", systems="recurrent")
    make_plan("--warmup_steps=4000", learning_rate_factors=[1.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": [1, -5]}, "^seed=-5 must be at least 0"),
        ({"learning_rate_factors": [1.0, 0.0]}, "^learning_rate_factor=0.0 must be above 0"),
    ],
)
def test_what_a_later_run_would_refuse_is_refused_at_once(make_plan, options, message):
    with pytest.raises(UserError, match=message):
        make_plan(**options)


def test_one_rate_needs_no_search(make_plan):
    plan = make_plan(flops=None, target_tokens=3999, learning_rate_factors=[0.7])
    assert plan.plan_search() == []
    plan.choose()
    assert [entry.factor for entry in plan.entries] == [0.7, 0.7]
    assert [run.settings.run.average_checkpoints for run in plan.plan_runs()] == [3] * 4  # of as many updates


@pytest.mark.parametrize(("save_steps", "averaged"), [(0, 1), (50_000, 1), (40, 3), (25, 4)])
def test_as_many_checkpoints_are_averaged_as_save_steps_makes(make_plan, save_steps, averaged):
    given = {"flops": None, "target_tokens": 100_000, "learning_rate_factors": [1.0]}
    plan = make_plan(f"--save_steps={save_steps}", systems="recurrent", **given)
    plan.choose()
    [run, _] = plan.plan_runs()
    assert (run.settings.optimization.max_steps, run.settings.run.save_steps) == (100, save_steps)
    assert run.settings.run.average_checkpoints == averaged
    assert parse_settings(run.arguments) == run.settings


def test_final_runs_have_recipe_budget_rate_seed_and_the_flags_of_the_command(make_plan, tmp_path):
    plan = make_plan("--warmup_steps=77", learning_rate_factors=[0.7])
    plan.plan_search()
    plan.choose()
    runs = plan.plan_runs()
    assert [run.name for run in runs] == ["recurrent-1", "recurrent-2", "transformer-1", "transformer-2"]
    for run, entry in zip(runs[::2], plan.entries, strict=True):
        settings = run.settings
        assert (settings.optimization.seed, settings.optimization.max_steps) == (1, entry.steps)
        assert (settings.optimization.warmup_steps, settings.optimization.learning_rate_factor) == (77, 0.7)
        assert (settings.run.output_dir, settings.run.average_checkpoints) == (str(tmp_path / run.name), 5)
        assert settings.run.eval_steps == entry.steps // 5
        assert settings.model.config_name == str(tmp_path / "configs" / entry.system.name)
        assert parse_settings(run.arguments) == settings
        assert run.cost == entry.flops(entry.steps)
    assert runs[0].settings.optimization.max_grad_norm == 5.0
    assert runs[2].settings.optimization.max_grad_norm is None
    assert runs[1].settings.optimization.seed == 2
    whole = make_plan("--eval_steps=9", scale=1.0, flops=1e15, learning_rate_factors=[1.0])
    whole.choose()
    settings = whole.plan_runs()[0].settings
    assert (settings.run.eval_steps, settings.model.config_name) == (9, SYSTEMS["recurrent"].config_name)
