import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from training import benchmark
from training.benchmarks import memory
from training.benchmarks.memory import LINES, TRAINING, TRANSLATING, fit, measure, model_folder, points_of
from vaswani.loading import load
from vaswani.models.decoding_vaswani import PAPERS_DECODING


TINY = {"model": "demo", "vocabulary": 300}


@pytest.fixture
def pretended(monkeypatch):
    """Pretend that each point takes a GB, one for each 1,000 tokens, and one for each beam."""
    monkeypatch.setattr(
        memory, "measure", lambda point, folder: (1 + point.tokens / 1000 + (point.beams or 0)) * memory.GIGA
    )


def rows_of(*flags):
    return memory.run(benchmark.parse(["memory", "--device", "cpu", *flags]))


def test_every_point_has_a_row_and_every_line_its_growth(pretended, capsys):
    rows = rows_of()
    points = {point for axis, lines in LINES.items() for line in lines for point in points_of(axis, *line)}
    measured = [row for row in rows if "peak, GB" in row]
    assert len(measured) == len(points)
    assert all(("estimate, GB" in row) == (row["what"] == "translate") for row in measured)
    growths = [row["GB"] for row in rows if "GB" in row]
    assert len(growths) == sum(map(len, LINES.values()))
    assert growths[0] == "5.00 + 1 tokens / 1,000"
    assert "3.05 + 1 beams" in growths
    assert sum(growth.endswith(" / length") for growth in growths) == 1
    table = benchmark.table(rows)
    assert max(map(len, table.splitlines())) <= 100
    assert f"{len(points)}/{len(points)}: " in capsys.readouterr().err


def test_growth_is_drawn_over_every_axis(pretended, tmp_path):
    rows_of("--picture", str(tmp_path / "memory.svg"))
    text = (tmp_path / "memory.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for words in (*memory.TITLES.values(), "translating, small", "training, base-en-de", "var(--blue)"):
        assert words in text


def test_a_line_goes_through_points_that_lie_on_one():
    values = (8, 16, 32)
    peaks = dict(zip(points_of("length", TRANSLATING, values), (3.0, 2.0, 1.5), strict=True))
    low, slope, function = fit("length", TRANSLATING, values, peaks)
    assert (low, slope, function(4)) == (pytest.approx(1), pytest.approx(16), pytest.approx(5))
    peaks = dict(zip(points_of("tokens", TRAINING, values), (1.0, 2.0, 4.0), strict=True))
    assert fit("tokens", TRAINING, values, peaks)[:2] == (pytest.approx(0), pytest.approx(0.125))


def test_sentences_have_the_length_that_the_point_has(tmp_path):
    point = replace(TRANSLATING, **TINY, length=7)
    folder = model_folder(point, tmp_path)
    model, tokenizer = load(str(folder))
    sentences = list(memory.random_sentences(point, 5))
    encoded = tokenizer(sentences).input_ids
    assert {len(ids) for ids in encoded} == {7}
    assert {ids[-1] for ids in encoded} == {model.config.eos_token_id}
    assert tokenizer.unk_token_id not in {token for ids in encoded for token in ids}
    assert (len(tokenizer), model.config.vocab_size, tokenizer.pad_token_id) == (300, 300, model.config.pad_token_id)
    assert model.generation_config.extra_target_tokens == PAPERS_DECODING["extra_target_tokens"]


def test_translations_become_as_long_as_they_may_and_fill_one_batch(tmp_path):
    point = replace(TRANSLATING, model="demo", vocabulary=30, tokens=60, length=6, beams=4)
    assert 0.1 < measure(point, tmp_path) / memory.GIGA < 5
    lines = (tmp_path / "output.txt").read_text(encoding="utf-8").splitlines()
    assert [len(line.split()) for line in lines] == 10 * [56]


def test_one_worker_translates_the_whole_batch(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(memory, "run_and_watch", lambda command: commands.append(command) or (0.0, 1))
    assert measure(replace(TRANSLATING, **TINY), tmp_path) == 1
    assert "--workers=1" in commands[0]


@pytest.mark.slow
def test_a_run_is_measured(tmp_path):
    assert 0.2 < measure(replace(TRAINING, **TINY, tokens=300), tmp_path) / memory.GIGA < 10
