"""The training loop in this process, on a few pairs, with an objective that can be made to fail."""

import json
import math
import os
import signal
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from training.data.preparation import prepare
from training.objective.loss import LabelSmoothedObjective
from training.settings import parse_settings
from training.trainer import loop as loop_module
from training.trainer.checkpoint_manager import Keeper
from training.trainer.checkpoints import list_checkpoints
from training.trainer.fingerprint import describe_identity
from training.trainer.logbook import Logbook
from training.trainer.loop import TrainingLoop
from training.trainer.model import build_model, load_config
from training.trainer.run_directory import make_output_dir
from training.trainer.stopping import Interrupted
from vaswani.errors import UserError


@pytest.fixture
def make_loop(corpus, tmp_path):
    def make(**settings):
        files = {f"{split}_file": str(corpus / f"{split}.tsv") for split in ("train", "validation")}
        given = {"source_lang": "en", "target_lang": "de", "config_name": str(corpus), "vocab_size": 290}
        given |= {"max_tokens_per_batch": 300, "max_source_length": 40, "max_target_length": 40, "max_steps": 12}
        given |= {"warmup_steps": 100, "logging_steps": 1, "eval_steps": 0, "save_steps": 0, "max_eval_samples": 4}
        given |= files | {"mixed_precision": "no", "output_dir": str(tmp_path / "run")} | settings
        chosen = parse_settings([f"--{name}={value}" for name, value in given.items()])
        directory, accelerator = make_output_dir(chosen.output_dir), Accelerator(cpu=True)
        prepared = prepare(chosen)
        model = build_model(load_config(chosen), chosen, prepared.tokenizer)
        logbook = Logbook(directory, accelerator, chosen)
        identity = describe_identity(chosen, model.config, prepared.tokenizer, prepared.encoded)
        keeper = Keeper(accelerator, chosen, model, identity, logbook.say)
        loop = TrainingLoop(accelerator, chosen, prepared, keeper, logbook)
        loop.resume()
        return loop

    return make


def rows(loop):
    return [json.loads(line) for line in loop.logbook.path.read_text().splitlines()]


def fail_at(monkeypatch, steps):
    """Make the loss NaN in the given updates."""
    calls = iter(range(1, 1000))

    class Failing(LabelSmoothedObjective):
        def forward(self, *batch):
            sums = super().forward(*batch)
            return sums._replace(loss=sums.loss * (math.nan if next(calls) in steps else 1.0))

    monkeypatch.setattr(loop_module, "LabelSmoothedObjective", Failing)


def test_an_update_that_is_not_finite_is_skipped_and_counted(make_loop, monkeypatch, capsys):
    fail_at(monkeypatch, {3, 4, 7})
    loop = make_loop()
    weights = []
    update = loop.update
    monkeypatch.setattr(loop, "update", lambda *args: (update(*args), weights.append(snapshot(loop)))[0])
    loop.train()
    assert [row["skipped_updates"] for row in rows(loop)] == [0, 0, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3]
    assert rows(loop)[2]["loss"] is None
    assert (
        "step 3: loss nan, gradient norm nan: update skipped (update 3 of epoch 0, training pairs"
        in capsys.readouterr().out
    )
    unchanged = [torch.equal(before, after) for before, after in pairwise(weights)]
    assert [step for step, same in enumerate(unchanged, start=2) if same] == [3, 4, 7]
    assert torch.isfinite(weights[-1]).all()


def snapshot(loop):
    return torch.cat([weight.detach().flatten() for weight in loop.keeper.model.parameters()])


def test_an_update_is_left_between_micro_batches_and_done_again_when_resumed(make_loop, monkeypatch, tmp_path):
    settings = {"max_steps": 5, "max_tokens_per_device": 100, "save_steps": 5}
    torch.manual_seed(1)
    loop = make_loop(**settings, output_dir=str(tmp_path / "uninterrupted"))
    loop.train()
    expected = snapshot(loop)
    torch.manual_seed(1)
    loop, looks = make_loop(**settings), iter(range(1, 100))

    def look():  # at the beginning of each update
        loop.stop.signal = "SIGTERM" if next(looks) == 3 else None

    monkeypatch.setattr(loop.stop, "reason", look)
    with pytest.raises(Interrupted, match="SIGTERM"):
        loop.train()
    assert loop.progress.step == 2
    assert [path.name for path in list_checkpoints(loop.keeper.directory)] == [
        f"step-{loop.progress.step:07}-interrupted"
    ]
    again = make_loop(**settings, resume_from_checkpoint="latest")
    again.train()
    assert torch.equal(snapshot(again), expected)


def test_a_line_that_training_would_drop_for_its_length_does_not_stall_an_evaluation(make_loop, tmp_path, capsys):
    words = " ".join(["one"] * 3000)
    (tmp_path / "long.tsv").write_text(f"{words}\t{words}\none two\tzwei eins\n", encoding="utf-8")
    loop = make_loop(validation_file=str(tmp_path / "long.tsv"))
    lengths = []
    loop.keeper.model.model.encoder.register_forward_pre_hook(
        lambda module, arguments, named: lengths.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    row = loop.judge("validation")
    assert row["truncated_sources"] == 1
    assert max(lengths) == 40
    assert row["seconds"] < 20
    assert "1 translated up to max_source_length" in capsys.readouterr().out


def test_an_evaluation_is_left_as_soon_as_the_run_should_end(make_loop, monkeypatch):
    loop = make_loop()
    monkeypatch.setattr(loop_module, "evaluate", lambda *given, **named: time.sleep(60))
    started = time.monotonic()
    with loop.stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"):
            loop.judge("validation")
    assert time.monotonic() - started < 20


def test_too_many_skipped_in_a_row_end_the_run_and_name_the_batch(make_loop, monkeypatch):
    monkeypatch.setattr(loop_module, "MAX_SKIPPED_IN_A_ROW", 3)
    fail_at(monkeypatch, {2, 4, 5, 6})
    with pytest.raises(
        UserError, match=r"3 updates in a row .* at step 6 \(update 6 of epoch 0, training pairs \d+, "
    ):
        make_loop().train()


def test_early_stopping_ends_the_run_and_publishes_the_best_weights(make_loop, monkeypatch):
    scores = iter([5.0, 3.0, 4.0, 3.5, 1.0])
    loop = make_loop(max_steps=50, eval_steps=2, early_stopping_patience=2, metric_for_best_model="nll")
    at = {}

    def judge(split, averaged=1):
        at[loop.progress.step] = snapshot(loop)
        return {"nll": next(scores)}

    monkeypatch.setattr(loop, "judge", judge)
    loop.train()
    assert loop.progress.step == 8
    assert sorted(path.name for path in loop.keeper.directory.iterdir()) == ["step-0000004-best", "step-0000008"]
    assert not torch.equal(snapshot(loop), at[4])
    assert loop.keeper.choose_weights() == 1
    assert torch.equal(snapshot(loop), at[4])


def test_a_run_that_has_stopped_early_stays_stopped_when_resumed(make_loop, monkeypatch):
    stops = {"max_steps": 50, "eval_steps": 2, "early_stopping_patience": 1}
    loop = make_loop(**stops)
    scores = iter([3.0, 4.0])
    monkeypatch.setattr(loop, "judge", lambda split: {"nll": next(scores)})
    loop.train()
    again = make_loop(**stops, resume_from_checkpoint="latest")
    assert again.progress == loop.progress
    again.train()
    assert again.progress.step == 4


def test_checkpoints_by_minutes(make_loop, monkeypatch):
    clock = iter(range(0, 10**6, 20))
    monkeypatch.setattr(loop_module.time, "perf_counter", lambda: float(next(clock)))
    loop = make_loop(save_minutes=10, max_steps=40)
    loop.train()
    steps = [int(path.name[5:]) for path in sorted(loop.keeper.directory.iterdir())]
    assert steps[-1] == 40
    assert 3 < len(steps) < 20


def test_dropout_depends_on_seed_step_and_process_only(make_loop, monkeypatch):
    def seeds(start, **settings):
        loop, seen = make_loop(overwrite_output_dir=True, max_steps=8, **settings), {}
        loop.progress.step = start
        monkeypatch.setattr(torch, "manual_seed", lambda seed: seen.setdefault(loop.progress.step, seed))
        loop.train()
        return seen

    whole, rest = seeds(0), seeds(5)
    assert rest == {step: whole[step] for step in (6, 7, 8)}
    assert len(set(whole.values())) == 8
    assert not set(seeds(0, seed=5).values()) & set(whole.values())


def test_the_gradient_divides_by_all_tokens_of_the_update_and_a_mean_of_means_is_something_else(make_loop):
    """Micro-batches of very different sizes."""
    loop = make_loop(max_tokens_per_device=60, length_groups=3)
    update = next(loop.updates())
    sizes = [(batch.labels != -100).sum().item() for batch in update.batches]
    assert len(sizes) > 3
    assert sum(sizes) == update.target_tokens

    def gradient(weights):
        loop.objective.zero_grad()
        for batch, weight in zip(update.batches, weights, strict=True):
            (loop.objective(*batch).loss * weight).backward()
        return torch.cat([p.grad.flatten() for p in loop.keeper.trained.parameters() if p.grad is not None])

    right = gradient([1 / update.target_tokens] * len(sizes))
    mean_of_means = gradient([1 / size / len(sizes) for size in sizes])
    loop.optimizer.zero_grad()
    loss, _, norm = loop.update(update, 0.0)
    # Sums in another order differ by some 1e-5; the mean of means, the control, by far more.
    assert norm == pytest.approx(right.norm().item(), rel=1e-4)
    assert norm != pytest.approx(mean_of_means.norm().item(), rel=1e-3)
    assert np.isfinite(loss)
    assert (right - mean_of_means).abs().max() > 1e-3 * right.abs().max()


def test_key_biases_do_not_wander(make_loop):
    loop = make_loop()
    loop.train()
    biases = {name: bias for name, bias in loop.keeper.model.named_parameters() if name.endswith("_proj.bias")}
    assert all((bias == 0).all() == name.endswith("k_proj.bias") for name, bias in biases.items())
