import json
from pathlib import Path

import pytest

from training import benchmark
from training.benchmarks import training
from training.benchmarks.records import Turn, TurnResult
from training.recipe import parse_settings
from training.tables.cost import flops_per_target_token


def workload(folder: Path, *flags: str) -> training.Workload:
    return training.Workload.of(benchmark.parse(["train", "--dataset_name=grammar", *flags]), folder)


def test_ratios_are_those_of_the_medians():
    turns = [TurnResult(rate, peak_bytes) for rate, peak_bytes in ((1.0, 2e9), (4.0, 3e9), (2.0, 1e9))]
    contender = training.Contender("peer", "fp32", lambda: turns[0])
    row = training.summarize(contender, turns, ours=6.0, flops=10.0, peaks={"fp32": 40.0, "bf16": 1.0})
    assert (row.what, row.precision) == ("peer, target tokens/s", "fp32")
    assert (row.median, row.lowest, row.highest) == (2.0, 1.0, 4.0)
    assert (row.ours_is_times, row.times_ours, row.utilization, row.peak_memory) == (3.0, None, 0.5, 3.0)


def test_the_loader_is_compared_the_other_way_round():
    contender = training.Contender("our loader alone", "", lambda: TurnResult(12.0, 1))
    row = training.summarize(contender, [TurnResult(12.0, 1)], ours=6.0, flops=10.0, peaks={})
    assert (row.times_ours, row.ours_is_times, row.utilization) == (2.0, None, None)


def test_all_contenders_take_turns_and_the_table_begins_with_ours(monkeypatch):
    rates = {"gemm": 1e12, "batched": 50.0, "loader": 400.0, "example": 25.0}
    taken = []

    def measure(workload, contender, precision, attention="sdpa"):
        taken.append((contender, precision, attention))
        return TurnResult(rates[contender], 1_500_000_000)

    def measure_ours(workload, precision):
        taken.append(("run.py", precision, "eager"))
        return TurnResult(100.0 if precision == "bf16" else 80.0, 1_000_000_000)

    monkeypatch.setattr(training.Workload, "measure", measure)
    monkeypatch.setattr(training.Workload, "measure_ours", measure_ours)
    rows = training.run(benchmark.parse(["train", "--device=cpu", "--dataset_name=grammar", "--rounds=2"]))
    turn = [("run.py", "bf16", "eager"), ("run.py", "fp32", "eager"), ("example", "fp32", "sdpa")]
    turn += [("batched", "bf16", "sdpa"), ("batched", "bf16", "eager"), ("loader", "", "sdpa")]
    assert taken == [("gemm", "fp32", "sdpa"), ("gemm", "bf16", "sdpa"), *turn, *turn]
    assert [row["what"].removesuffix(", target tokens/s") for row in rows[:6]] == [
        "ours",
        "ours in float32",
        "MarianMT as HF's example",
        "MarianMT on our batches",
        "MarianMT on our batches, eager",
        "our loader alone",
    ]
    assert [row.get("ours is times") for row in rows[:6]] == [1.0, 1.25, 4.0, 2.0, 2.0, None]
    assert rows[5]["times ours"] == 4.0
    assert rows[6] == {"what": "matrix product, GFLOP/s", "precision": "fp32", "median": 1000.0}
    flops = rows[8]["median"] * 1e9
    assert rows[0]["utilization"] == pytest.approx(100 * flops / 1e12)
    assert set(rows[0]) == {
        *("what", "precision", "median", "lowest", "highest", "peak memory, GB", "ours is times", "utilization"),
    }


def test_a_workload_hands_all_it_is_asked_for_to_run_py_and_to_the_contenders(tmp_path, monkeypatch):
    flags = ["--device=cpu", "--tokens=30000", "--max_tokens_per_batch=1000", "--max_tokens_per_device=4000"]
    flags += ["--seconds=7", "--sentences=5", "--torch_compile=true"]
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
    assert work.measure_ours("fp32") == TurnResult(20 / 3, 123)  # 20 tokens in 1 + 2 seconds, without the warm-up
    ours = parse_settings(commands[1][2:])
    assert (
        ours.optimization.max_steps,
        ours.reporting.logging_steps,
        ours.run.mixed_precision,
        ours.run.torch_compile,
    ) == (40, 10, "no", True)
    assert (ours.run.eval_steps, ours.run.save_steps, ours.run.output_dir) == (0, 0, str(tmp_path / "run"))
    work.measure_ours("bf16")
    assert parse_settings(commands[2][2:]).run.mixed_precision == "bf16"


def test_on_a_gpu_the_memory_is_that_of_the_gpu(tmp_path, monkeypatch):
    work = workload(tmp_path, "--device=cuda")
    assert (work.tokens, work.sentences, work.steps) == (2_000_000, 256, 4 * 27)
    assert [contender.name for contender in work.contenders()] == [
        "ours",
        "MarianMT with Seq2SeqTrainer",
        "MarianMT on our batches",
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
