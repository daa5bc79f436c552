import json
from functools import partial
from pathlib import Path

import pytest

from training import benchmark
from training.benchmarks import training
from training.benchmarks.records import Rates, Turn, TurnResult
from training.recipe import parse_settings
from training.tables.cost import flops_per_target_token
from vaswani.errors import UserError


def workload(folder: Path, *flags: str) -> training.Workload:
    return training.Workload.of(benchmark.parse(["train", "--dataset_name=grammar", *flags]), folder)


def test_ratios_are_those_of_the_same_round():
    turns = [TurnResult(rate, peak_bytes) for rate, peak_bytes in ((1.0, 2e9), (4.0, 3e9), (2.0, 1e9))]
    contender = training.Contender("peer", "fp32", lambda: turns[0])
    peaks = {"fp32": [40.0, 50.0, 25.0], "bf16": [1.0, 1.0, 1.0]}  # shares of 0.25, 0.8 and 0.8
    row = training.summarize(contender, turns, [6.0, 4.0, 8.0], flops=10.0, peaks=peaks)
    assert (row.what, row.precision, row.rates) == ("peer", "fp32", Rates(2.0, 1.0, 4.0))
    assert (row.ours_is_times, row.utilization, row.peak_memory) == (Rates(4.0, 1.0, 6.0), 0.8, 3.0)


def test_a_loader_has_no_ratio():
    contender = training.Contender("our loader alone", "", lambda: TurnResult(12.0, 1))
    row = training.summarize(contender, [TurnResult(12.0, 1)], [6.0], flops=10.0, peaks={})
    assert (row.ours_is_times, row.utilization) == (None, None)


@pytest.mark.parametrize("failing", ["ours", "MarianMT"])
def test_a_peer_that_fails_has_no_row_and_ours_must_not(monkeypatch, capsys, failing):
    def take(name):
        if name == failing:
            raise UserError("out of memory")
        return TurnResult(1.0, 1)

    contenders = [training.Contender(name, "bf16", partial(take, name)) for name in ("ours", "MarianMT", "the rest")]
    monkeypatch.setattr(training.Workload, "contenders", lambda self: contenders)
    monkeypatch.setattr(training.Workload, "measure", lambda *given: TurnResult(1e12, 1))
    options = benchmark.parse(["train", "--device=cpu", "--dataset_name=grammar", "--rounds=2"])
    if failing == "ours":
        with pytest.raises(UserError, match="out of memory"):
            training.run(options)
        return
    rows = training.run(options)
    assert [row["what"] for row in rows[:2]] == ["ours", "the rest"]
    assert "round 1/2: MarianMT is left out: out of memory" in capsys.readouterr().err


def test_all_contenders_take_turns_and_our_best_is_compared(monkeypatch):
    monkeypatch.setattr(training, "multiplies_bfloat16", lambda: True)
    rates = {"gemm": 1e12, "batched": 50.0, "loader": 400.0, "example": 25.0}
    taken = []

    def measure(workload, contender, precision, attention="sdpa", processes=1):
        taken.append((contender, precision, attention, processes))
        return TurnResult(rates[contender] * processes, 1_500_000_000)

    def measure_ours(workload, precision, processes=1):
        taken.append(("run.py", precision, "eager", processes))
        return TurnResult((100.0 if precision == "bf16" else 80.0) + 100 * (processes - 1), 1_000_000_000)

    monkeypatch.setattr(training.Workload, "measure", measure)
    monkeypatch.setattr(training.Workload, "measure_ours", measure_ours)
    monkeypatch.setattr(training, "usable_cores", lambda: 2)
    rows = training.run(benchmark.parse(["train", "--device=cpu", "--dataset_name=grammar", "--rounds=2"]))
    turn = [("run.py", "bf16", "eager", 1), ("run.py", "bf16", "eager", 2), ("run.py", "fp32", "eager", 1)]
    turn += [("batched", "bf16", "eager", 1), ("batched", "bf16", "eager", 2), ("batched", "bf16", "sdpa", 1)]
    turn += [("example", "fp32", "sdpa", 1), ("loader", "", "sdpa", 1)]
    assert taken == 2 * [("gemm", "fp32", "sdpa", 1), ("gemm", "bf16", "sdpa", 1), *turn]
    assert [row["what"] for row in rows[:8]] == [
        "ours",
        "ours, 2 processes",
        "ours in float32",
        "MarianMT, eager",
        "MarianMT, eager, 2 processes",
        "MarianMT",
        "MarianMT as HF's example",
        "our loader alone",
    ]
    ratios = [row["ours is times"]["median"] for row in rows[:7]]
    assert ratios == [2.0, 1.0, 2.5, 4.0, 2.0, 4.0, 8.0]
    assert "ours is times" not in rows[7]
    peak = {"median": 1000.0, "lowest": 1000.0, "highest": 1000.0}
    assert rows[8] == {"what": "matrix product, GFLOP/s", "precision": "fp32", "target tokens/s": peak}
    flops = rows[10]["target tokens/s"]["median"] * 1e9
    assert rows[0]["utilization"] == pytest.approx(100 * flops / 1e12)
    lines = benchmark.table(rows).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) < 2 * len(rows)  # all columns side by side


@pytest.mark.parametrize(("is_fast", "precisions"), [(True, {"bf16", "fp32", ""}), (False, {"fp32", ""})])
def test_a_cpu_that_does_not_multiply_bfloat16_is_measured_in_float32(is_fast, precisions, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(training, "multiplies_bfloat16", lambda: is_fast)
    monkeypatch.setattr(training.Workload, "measure_ours", lambda self, *given: seen.append(given))
    monkeypatch.setattr(training.Workload, "measure", lambda self, *given: seen.append(given))
    contenders = workload(tmp_path, "--device=cpu").contenders()
    assert {contender.precision for contender in contenders} == precisions
    assert len({(each.name, each.precision) for each in contenders}) == len(contenders)
    for contender in contenders:
        contender.take_turn()
        assert contender.precision in seen.pop()


def test_with_one_core_nothing_is_measured_in_two_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "usable_cores", lambda: 1)
    names = [contender.name for contender in workload(tmp_path, "--device=cpu").contenders()]
    assert not [name for name in names if "2 processes" in name]
    assert names[0] == "ours"


def test_text_of_wmt_like_lengths_keeps_its_long_sentences(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "write_synthetic_pairs", lambda path, count: path.touch())  # 200,000 take a minute
    for dataset, longest in (("grammar", 64), ("synthetic", 256)):
        data = parse_settings(workload(tmp_path, "--device=cpu", f"--dataset_name={dataset}").flags).data
        assert (data.max_source_length, data.max_target_length) == (longest, longest)


def test_a_workload_hands_all_it_is_asked_for_to_run_py_and_to_the_contenders(tmp_path, monkeypatch):
    flags = ["--device=cpu", "--tokens=30000", "--max_tokens_per_batch=1000", "--max_tokens_per_device=4000"]
    flags += ["--seconds=7", "--sentences=5"]
    work = workload(tmp_path, *flags)
    settings = parse_settings(work.flags)
    assert (settings.data.dataset_name, settings.data.source_lang, settings.data.target_lang) == (
        "grammar",
        "en",
        "de",
    )
    assert (settings.optimization.max_tokens_per_batch, settings.optimization.max_tokens_per_device) == (1000, 4000)
    assert (settings.run.attn_implementation, settings.model.vocab_size, work.config.d_model) == ("eager", 8000, 256)
    assert work.steps == 40  # 10 of warm-up, and 30,000 tokens in 30
    assert flops_per_target_token(work.config) == pytest.approx(4.3e7, rel=0.1)

    commands = []

    def pretend(command):
        commands.append(command)
        (tmp_path / "run").mkdir(exist_ok=True)
        rows = [{"target_tokens": 10, "target_tokens_per_second": rate} for rate in (1.0, 10.0, 5.0)]
        (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return 'loading\n{"rate": 3.5}\n', 123

    monkeypatch.setattr(training, "run_and_watch", pretend)
    assert work.measure("batched", "bf16", "eager") == TurnResult(3.5, 123)
    assert commands[0][1:3] == ["-m", "training.benchmarks.contenders"]
    assert Turn(**json.loads(commands[0][3])) == Turn(
        contender="batched",
        precision="bf16",
        device="cpu",
        flags=work.flags,
        tokens=30_000,
        seconds=7.0,
        sentences=5,
        folder=str(tmp_path / "trainer"),
        attention="eager",
    )
    work.measure("batched", "bf16", "eager", 2)
    together = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    assert commands[1][1:7] == [*together, "-m", "training.benchmarks.contenders"]
    assert Turn(**json.loads(commands.pop(1)[7])).processes == 2
    assert work.measure_ours("fp32") == TurnResult(20 / 3, 123)  # 20 tokens in 1 + 2 seconds, without the warm-up
    ours = parse_settings(commands[1][2:])
    assert (
        ours.optimization.max_steps,
        ours.reporting.logging_steps,
        ours.run.mixed_precision,
    ) == (40, 10, "no")
    assert (ours.run.eval_steps, ours.run.save_steps, ours.run.output_dir) == (0, 0, str(tmp_path / "run"))
    work.measure_ours("bf16")
    assert parse_settings(commands[2][2:]).run.mixed_precision == "bf16"
    work.measure_ours("bf16", 2)
    assert commands[3][1:6] == [*together, str(training.RUN)]


def test_on_a_gpu_the_memory_is_that_of_the_gpu(tmp_path, monkeypatch):
    work = workload(tmp_path, "--device=cuda")
    assert (work.tokens, work.sentences, work.steps) == (2_000_000, 512, 600)
    assert [contender.name for contender in work.contenders()] == [
        "ours",
        "MarianMT with Seq2SeqTrainer",
        "MarianMT",
        "our loader alone",
    ]
    monkeypatch.setattr(training, "run_and_watch", lambda command: ('{"rate": 3.5, "peak_bytes": 77}\n', 123))
    assert work.measure("trainer", "bf16") == TurnResult(3.5, 77)
    monkeypatch.setattr(training, "run_and_watch", lambda command: ("done\n88\n", 123))
    monkeypatch.setattr(training, "logged_rate", lambda output_dir: 5.0)
    assert work.measure_ours("bf16") == TurnResult(5.0, 88)


def test_synthetic_pairs_are_two_columns_of_words(tmp_path):
    training.write_synthetic_pairs(tmp_path / "train.tsv", 50)
    pairs = [line.split("\t") for line in (tmp_path / "train.tsv").read_text().splitlines()]
    assert len(pairs) == 50
    assert all(len(pair) == 2 for pair in pairs)
    assert all(
        0.75 <= len(target.split()) / len(source.split()) <= 1.25
        for source, target in pairs
        if len(source.split()) > 9
    )
