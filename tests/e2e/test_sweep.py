"""Table 3 on a corpus of number words: two rows at once, interrupted, resumed."""

import csv
import json
import signal
import subprocess
import time

from tiny_run import ENVIRONMENT, PYTHON, command

from training.machine import usable_cores
from training.settings import ROOT


def steps(directory) -> list[int]:
    path = directory / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_sweep_resumes_where_it_was_interrupted_and_fills_the_table(corpus, tmp_path):
    line = command(PYTHON, corpus)
    data = line[2 : line.index("--config_name")]
    sweep = [*PYTHON, str(ROOT / "training" / "table3.py"), "--rows=base,A-h1", "--scale=0.0625"]
    sweep += [f"--jobs={min(2, usable_cores())}"]
    sweep += ["--budget=30000", f"--output_dir={tmp_path / 'table3'}", *data, "--vocab_size=290"]
    sweep += ["--max_tokens_per_batch=600", "--max_source_length=40", "--max_target_length=40", "--warmup_steps=20"]
    sweep += ["--max_eval_samples=20", "--mixed_precision=no"]
    base = tmp_path / "table3" / "base"
    with open(tmp_path / "first", "w") as output:
        first = subprocess.Popen(sweep, env=ENVIRONMENT, stdout=output, stderr=output)
        deadline = time.monotonic() + 120
        while not list(base.glob("checkpoints/step-*")) and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        first.send_signal(signal.SIGTERM)
        status = first.wait(120)
    assert status == 128 + signal.SIGTERM, (tmp_path / "first").read_text()
    assert "the same command resumes" in (tmp_path / "first").read_text()
    reached = max(steps(base))
    assert reached < 50

    second = subprocess.run(sweep, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stdout + second.stderr
    assert f"Resumed from {base}" in (tmp_path / "table3" / "base.log").read_text()
    with (tmp_path / "table3" / "table3.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["base", "A-h1"]
    for row in rows:
        assert float(row["perplexity"]) > 1
        assert int(row["trained_target_tokens"]) > 0
        config = json.loads((tmp_path / "table3" / row["row"] / "model" / "config.json").read_text())
        assert (config["d_model"], config["encoder_layers"], config["encoder_attention_heads"]) == (
            32,
            3,
            8 if row["row"] == "base" else 1,
        )
    assert "2 of 2 rows are finished" in second.stdout
    assert "heads (A)  perplexity" in second.stdout
    report = (tmp_path / "table3" / "table3.md").read_text()
    assert "| heads (A) | perplexity |" in report
    assert "python training/table3.py --rows=base,A-h1 --scale=0.0625" in report
    assert (tmp_path / "table3" / "table3.png").exists()
    finished = steps(base)

    more = [*sweep, "--rows=base", "--seeds=2017,3"]
    third = subprocess.run(more, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert third.returncode == 0, third.stderr
    assert "2 of 2 runs are finished" in third.stdout
    assert steps(base) == finished
    assert steps(tmp_path / "table3" / "base-3")[-1] == 50
