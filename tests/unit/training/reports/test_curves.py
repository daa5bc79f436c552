import numpy as np
import pytest

from training.reports import curves
from training.reports.curves import (
    CURVES,
    MOST_POINTS,
    as_svg,
    draw_by_length,
    draw_curve,
    draw_curves,
    draw_lengths,
    scores_by_length,
    thinned,
)
from training.reports.records import read_runs
from vaswani.pictures.look import LIGHT
from vaswani.scoring.lengths import bleu_of, buckets


@pytest.fixture
def runs(make_run):
    return read_runs([make_run("one"), make_run("two")])


def test_every_metric_has_its_own_points(runs):
    runs[0].evaluations.append(runs[0].evaluations[-1] | {"split": "test"})  # which is not drawn
    drawn = draw_curves(runs[:1])
    assert set(drawn) == set(CURVES) - {"bracketing_f1"}
    for name, values in {
        "loss": [7.0, 5.0, 3.0],
        "gradient_norm": [1 / 2, 1 / 4, 1 / 6],
        "learning_rate": [0.1] * 3,
        "target_tokens_per_second": [50.0] * 3,
        "density": [0.9] * 3,
    }.items():
        [line] = drawn[name].axes[0].get_lines()
        assert line.get_xydata().tolist() == [list(point) for point in zip((2, 4, 6), values, strict=True)]
    training, validation = drawn["nll"].axes[0].get_lines()
    assert training.get_ydata().tolist() == [6.0, 4.0, 2.0]
    assert validation.get_xydata().tolist() == [[2.0, 2.5], [6.0, 2.5]]
    assert drawn["sacrebleu"].axes[0].get_lines()[0].get_ydata().tolist() == [20.5, 33.75]


def test_runs_lie_over_one_another_and_are_named(runs):
    figure = draw_curve(CURVES["sacrebleu"], runs)
    lines = figure.axes[0].get_lines()
    assert [line.get_color() for line in lines] == [LIGHT["blue"], LIGHT["orange"]]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one, validation", "two, validation"]


@pytest.mark.parametrize(("most", "least", "labels"), [(1.18, 1.13, {"1.15"}), (300, 4, {"10", "100"}), (8, 2, {"4"})])
def test_a_logarithmic_axis_has_plain_numbers(runs, most, least, labels):
    for value, row in zip((most, least), runs[0].evaluations[:2], strict=True):
        row |= {"perplexity": value, "split": "validation"}
    axes = draw_curve(CURVES["perplexity"], runs[:1]).axes[0]
    axes.figure.canvas.draw()
    said = {label.get_text() for label in axes.get_yticklabels(which="both")} - {""}
    assert labels <= said
    assert all(0.01 < float(text) < 10_000 for text in said)


def test_many_points_are_averaged_and_none_is_lost():
    points = np.stack([np.arange(2001.0), np.arange(2001.0) % 2], axis=1)
    few = thinned(points)
    assert len(few) <= MOST_POINTS
    assert few[0].tolist() == [2.0, 0.4]
    assert thinned(points[:3]).tolist() == points[:3].tolist()
    assert thinned(points[:0]).shape == (0, 2)


def test_lengths_and_scores_by_length_are_drawn(runs):
    source, target = draw_lengths(runs[0].lengths).axes[0].get_lines()
    assert (source.get_ydata().tolist(), target.get_ydata().tolist()) == ([0, 3, 5], [0, 2, 6])
    assert draw_lengths({}) is None
    figure = draw_by_length(runs, "validation")
    assert len(figure.axes[0].get_lines()) == 2
    assert figure.axes[0].get_lines()[0].get_ydata()[-1] > 0
    assert draw_by_length(runs, "test") is None


def test_scores_by_length_are_those_of_the_last_evaluation(runs, make_run):
    last = runs[0].outputs("validation")[-1]
    expected = {part.name: bleu_of(part, last.outputs, last.references) for part in buckets(last.sources)}
    assert scores_by_length(runs[0], "validation") == expected
    [parser] = read_runs([make_run("parser", target_lang="tree")])
    for f1, row in zip((70.0, 80.0), parser.evaluations, strict=True):
        row["bracketing_f1_by_length"] = {
            "1-10": {"sentences": 2, "bracketing_f1": f1},
            "11-20": {"sentences": 0, "bracketing_f1": 0.0},
        }
    assert scores_by_length(parser, "validation") == {"1-10": 80.0}


def test_scores_by_length_are_by_the_tokens_of_the_run(runs, monkeypatch):
    monkeypatch.setattr(curves, "bleu_of", lambda part, outputs, references, *scored_as: scored_as)
    runs[0].recipe.update(target_lang="zh", tokenized=True)
    assert set(scores_by_length(runs[0], "validation").values()) == {("zh", True)}


def test_a_drawing_is_an_svg_whose_text_is_text(runs):
    svg = as_svg(draw_curve(CURVES["loss"], runs), "loss of two runs")
    assert svg.startswith("<svg")
    assert ">Loss, label-smoothed, in nats a token</text>" in svg
    assert "loss of two runs</dc:title>" in svg
