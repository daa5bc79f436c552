from functools import partial

import pytest

from training import benchmark
from training.benchmarks import generation
from training.benchmarks.generation import compare, seconds_of
from training.benchmarks.records import Rates, take_turns
from training.benchmarks.translators.work import Contender
from vaswani.models.packing_vaswani import multiplies_bfloat16


def contender(name, precision, setting="2 threads", beams=4, is_cut=False):
    return Contender(name, precision, setting, beams, lambda: None, is_cut)


def test_ratios_are_those_of_the_same_turn_and_of_our_best_setting_of_the_same_search():
    contenders = [
        contender("ours", "bf16"),
        contender("ours", "bf16", "2 workers"),
        contender("ours", "bf16", beams=1),
        contender("ours, stock beam", "bf16"),
        contender("CTranslate2", "int8"),
        contender("ours", "int8"),
    ]
    rates = [[1.0, 2.0, 3.0], [4.0, 8.0, 6.0], [100.0] * 3, [90.0] * 3, [2.0, 2.0, 6.0], [1.0, 3.0, 6.0]]
    rows = compare(contenders, rates)
    assert [row.search for row in rows] == ["greedy"] + ["beam 4"] * 5
    peer = rows[4]
    assert (peer.what, peer.on, peer.rates) == ("CTranslate2, int8", "2 threads", Rates(2.0, 2.0, 6.0))
    assert peer.bf16_is_times == Rates(2.0, 1.0, 4.0)
    assert peer.int8_is_times == Rates(1.0, 0.5, 1.5)
    assert rows[0].int8_is_times is None


def test_a_cut_vocabulary_is_compared_with_a_cut_vocabulary_alone():
    contenders = [contender("ours", "int8"), contender("CTranslate2, vmap", "int8", is_cut=True)]
    assert compare(contenders, [[9.0], [3.0]])[1].int8_is_times is None
    contenders.append(contender("ours, shortlist", "int8", is_cut=True))
    rows = compare(contenders, [[9.0], [3.0], [6.0]])
    assert rows[1].int8_is_times == Rates(2.0, 2.0, 2.0)
    assert rows[0].int8_is_times == Rates(1.0, 1.0, 1.0)


def test_every_contender_translates_every_turn_and_the_first_turn_does_not_count(monkeypatch):
    said, clock = [], iter([0.0, 9.0, 10.0, 19.0, 20.0, 21.0, 30.0, 32.0])
    monkeypatch.setattr(generation.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(generation.time, "sleep", lambda seconds: said.append("pause"))
    contenders = [
        Contender(name, "bf16", "", 1, lambda name=name: said.append(name)) for name in ("ours", "CTranslate2")
    ]
    assert take_turns([partial(seconds_of, each) for each in contenders], 1) == [[1.0], [2.0]]
    assert said == ["pause", "ours", "pause", "CTranslate2"] * 2


@pytest.mark.slow
def test_all_settings_of_all_peers_are_measured_and_fit_a_terminal(monkeypatch):
    monkeypatch.setattr(generation, "usable_cores", lambda: 2)
    monkeypatch.setattr(generation, "peaks", lambda cores: {("bf16", 1): 250.0, ("bf16", 2): 480.0})
    flags = ["--turns=1", "--batch_sentences=3", "--new_tokens=4", "--model_config=demo", "--device=cpu", "--beams=2"]
    rows = generation.run(benchmark.parse(["generate", *flags]))
    settings = {(row["what"], row["on"]) for row in rows if row.get("search") == "beam 2" and "on" in row}
    fast = "bf16" if multiplies_bfloat16() else "fp32"
    both = [f"ours, {fast}", f"MarianMT, {fast}", "CTranslate2, int8"]
    expected = {(name, setting) for name in both for setting in ("2 threads", "2 workers")}
    expected |= {("ours, fp32", "2 threads"), (f"ours, stock beam, {fast}", "2 threads")}
    expected |= {("CTranslate2, fp32", "2 workers"), ("CTranslate2, vmap, int8", "2 workers")}
    assert expected <= settings
    assert settings - expected <= {
        (f"{name}, {precision}", setting)
        for name, precision in [
            *[(name, "int8") for name in ("ours", "ours, compiled", "ours, compiled, shortlist", "ours, shortlist")],
            ("ours, shortlist", fast),
        ]
        for setting in ("2 threads", "2 workers")
    }
    floors = [row["target tokens/s"]["median"] for row in rows if row["what"] == "a token, GFLOP"]
    assert 0 < floors[0] < floors[1] < 2 * floors[0]
    lines = benchmark.table(rows).splitlines()
    assert max(map(len, lines)) < 100
    assert len(lines) < 2 * len(rows)  # all columns side by side
