import json

import pytest

from training.settings import ROOT
from training.tables.cost import count_parameters, flops_per_target_token
from training.tables.curves.points import doublings, measure, share_of_training, slope
from training.tables.curves.rows import Row, make_run, write_texts
from training.tables.curves.rows import make_rows as make_rows_of
from training.trainer.model import load_config


def test_a_doubling_gives_what_the_points_say(points):
    found = {(each.what.split(",")[0], each.score): each for each in doublings(points)}
    text, size = found["training pairs", "sacrebleu"], found["parameters", "sacrebleu"]
    assert (text.overall, text.last) == (3.0, 2.0)
    assert (size.overall, size.last) == (1.0, 1.0)
    tokens = found["target tokens of training", "sacrebleu"]
    assert (tokens.overall, tokens.last) == (3.0, 2.0)  # 26 - 8, 26 - 4, 26 - 2
    assert found["training pairs", "chrf"].last == 2.0
    assert text.factor_of_one_point == pytest.approx(2**0.5)


def test_what_gains_nothing_has_no_price_and_what_does_not_differ_is_left_out(points):
    alike = [point for point in points if point.row.share == 1]
    assert {each.what.split(",")[0] for each in doublings(alike)} == {"target tokens of training", "parameters"}
    worse = [alike[0], alike[1].__class__(**vars(alike[1]) | {"test": alike[0].test | {"sacrebleu": 25.0}})]
    size = next(each for each in doublings(worse) if each.what.startswith("parameters") and each.score == "sacrebleu")
    assert size.last < 0
    assert size.factor_of_one_point is None


def test_a_slope_is_for_each_doubling():
    assert slope(10, 1.0, 40, 5.0) == 2.0
    assert slope(10, 1.0, 20, 5.0) == 4.0


def test_the_last_doubling_is_one_and_not_the_step_between_two_near_evaluations(points):
    near = [
        (seen, points[2].on_the_way[-1][1] | {"sacrebleu": bleu}) for seen, bleu in ((4, 20.0), (9, 25.0), (10, 1.0))
    ]
    whole = points[2].__class__(**vars(points[2]) | {"on_the_way": near})
    [tokens] = [each for each in doublings([whole]) if each.score == "sacrebleu"]
    assert tokens.last == tokens.overall == slope(4, 20.0, 10, 1.0)


def test_the_nearest_evaluation_stands_for_a_share(points):
    assert share_of_training(points[0], 0.25) == points[0].on_the_way[1][1]
    assert share_of_training(points[0], 0.3) == points[0].on_the_way[1][1]
    assert share_of_training(points[0], 0.35) is None  # the nearest has seen a quarter
    assert share_of_training(points[0], 1.0) is None
    assert share_of_training(points[0].__class__(**vars(points[0]) | {"on_the_way": []}), 0.5) is None


def test_a_run_is_measured_by_its_rows(settings, text, tmp_path):
    [row, _] = make_rows_of([0.5], [str(ROOT / "hub_configs" / "demo")])
    write_texts([row], text, settings, tmp_path / "texts")
    run = make_run(row, settings, tmp_path)
    run.directory.mkdir(parents=True)
    logged = {"target_tokens": 500, "target_tokens_per_second": 50.0, "loss": 1.0}
    scores = {"sacrebleu": 10.0, "chrf": 30.0, "nll": 2.0}
    rows = [logged | {"step": 10}, scores | {"step": 10, "split": "validation"}, logged | {"step": 20}]
    rows += [scores | {"step": 20, "split": "validation", "sacrebleu": 12.0}, scores | {"step": 20, "split": "test"}]
    (run.directory / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    point = measure(row, run)
    assert (point.pairs, point.target_tokens, point.seconds) == (4, 1000, 20.0)
    assert [(seen, each["sacrebleu"]) for seen, each in point.on_the_way] == [(500, 10.0)]
    assert (point.validation["sacrebleu"], point.test["split"]) == (12.0, "test")
    config = load_config(row.config)
    config.vocab_size = 300
    assert point.parameters == count_parameters(config)
    assert point.flops == pytest.approx(1000 * flops_per_target_token(config))
    assert point.row == Row(0.5, row.config)
