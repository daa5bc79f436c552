"""The training loop in this process, on a few pairs, with an objective that can be made to fail."""

import json
import math
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise, takewhile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from packed_operations import stand_in
from tokenizers import Tokenizer, models, processors

from training.checkpoints.files import list_checkpoints
from training.checkpoints.fingerprint import run_fingerprint
from training.checkpoints.manager import CheckpointManager, ChosenWeights
from training.data.preparation import prepare
from training.gpu.objective import PackedObjective
from training.objective.loss import LabelSmoothedObjective
from training.objective.schedule import learning_rate
from training.recipe import parse_settings
from training.trainer import loop as loop_module
from training.trainer import minimization
from training.trainer.logbook import Logbook
from training.trainer.loop import TrainingLoop
from training.trainer.model import build_model, load_config
from training.trainer.run_directory import make_output_dir
from training.trainer.stopping import STARTED
from vaswani.errors import UserError
from vaswani.interruption import Interrupted
from vaswani.tokenization import wrap_tokenizer


@pytest.fixture
def make_loop(corpus, tmp_path):
    def make(**settings):
        files = {f"{split}_file": str(corpus / f"{split}.tsv") for split in ("train", "validation")}
        given = {"source_lang": "en", "target_lang": "de", "config_name": str(corpus), "vocab_size": 290}
        given |= {"max_tokens_per_batch": 300, "max_source_length": 40, "max_target_length": 40, "max_steps": 12}
        given |= {"warmup_steps": 100, "logging_steps": 1, "eval_steps": 0, "save_steps": 0, "max_eval_samples": 4}
        given |= files | {"mixed_precision": "no", "output_dir": str(tmp_path / "run")} | settings
        chosen = parse_settings([f"--{name}={value}" for name, value in given.items()])
        directory, accelerator = make_output_dir(chosen.run.output_dir), Accelerator(cpu=True)
        prepared = prepare(chosen.data, chosen.model, directory / "corpus")
        model = build_model(load_config(chosen.model.config_name), prepared.tokenizer, ("en", "de"), "eager")
        logbook = Logbook(directory, accelerator, chosen)
        fingerprint = run_fingerprint(chosen, model.config, prepared.tokenizer, prepared.encoded)
        checkpoints = CheckpointManager(accelerator, chosen.run, model, fingerprint, logbook.say)
        loop = TrainingLoop(accelerator, chosen, prepared, checkpoints, logbook)
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

    monkeypatch.setattr(minimization, "LabelSmoothedObjective", Failing)


def test_an_update_that_is_not_finite_is_skipped_and_counted(make_loop, monkeypatch, capsys):
    fail_at(monkeypatch, {3, 4, 7})
    loop = make_loop()
    weights = []
    optimize = loop.optimize

    def watched(*given, **named):
        result = optimize(*given, **named)
        weights.append(snapshot(loop))
        return result

    monkeypatch.setattr(loop, "optimize", watched)
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


def test_results_that_are_read_late_change_nothing(make_loop, monkeypatch, tmp_path):
    """A GPU's are read while it computes the next update, and its optimizer skips by itself what is not finite."""

    def train(reads_late: bool):
        fail_at(monkeypatch, {3, 4, 8})
        torch.manual_seed(1)
        given = {"max_steps": 11, "logging_steps": 5, "save_steps": 4, "eval_steps": 6}
        loop, waiting = make_loop(**given, output_dir=str(tmp_path / str(reads_late))), []
        loop.reads_late, rate = reads_late, loop.learning_rate
        monkeypatch.setattr(loop, "learning_rate", lambda: waiting.append(len(loop.unread)) or rate())
        loop.train()
        assert loop.unread == []
        lines = [{name: value for name, value in row.items() if "second" not in name} for row in rows(loop)]
        saved = sorted(path.name for path in list_checkpoints(loop.checkpoints.directory))
        return waiting, snapshot(loop), (lines, saved, loop.progress.skipped_updates, loop.progress.scores)

    never_waiting, wanted_weights, wanted = train(False)
    monkeypatch.undo()
    waiting, weights, found = train(True)
    assert never_waiting == 11 * [0]
    assert waiting == [0, 1, 1, 1, 0, 0, 0, 1, 0, 1, 0]  # 0 where something was due after the update before
    assert torch.equal(weights, wanted_weights)
    assert found == wanted
    assert found[2] == 3


def test_a_run_that_fails_leaves_no_worker(make_loop, monkeypatch):
    """Python would wait for it as it ends, where the error holds the loop."""
    fail_at(monkeypatch, range(1000))
    loop = make_loop(max_steps=50, dataloader_num_workers=1)
    with pytest.raises(UserError) as error:
        loop.train()
    assert "updates in a row had a loss" in str(error.value)
    assert multiprocessing.active_children() == []


def test_a_late_vote_ends_the_run_with_all_that_it_did(make_loop, monkeypatch):
    loop = make_loop(max_steps=9, logging_steps=9)
    loop.reads_late = True
    reasons = iter([None, None, "SIGTERM", "SIGTERM", "SIGTERM"])
    monkeypatch.setattr(loop.stop, "reason", lambda: next(reasons))
    with pytest.raises(Interrupted, match="SIGTERM"):
        loop.train()
    assert loop.progress.step == 4  # the vote of the third update was read when the fourth had begun
    assert loop.progress.sums.updates == 4
    assert loop.checkpoints.saved_step == 4


def test_a_late_vote_to_save_loses_no_vote_to_stop(make_loop, monkeypatch):
    loop = make_loop(max_steps=9, logging_steps=9)
    loop.reads_late = True
    reasons = iter([None, None, None, *6 * ["SIGTERM"]])
    monkeypatch.setattr(loop.stop, "reason", lambda: next(reasons))
    monkeypatch.setattr(loop, "save_is_due", lambda: loop.progress.step == 3)  # by the minutes that have passed
    with pytest.raises(Interrupted, match="SIGTERM"):
        loop.train()
    assert loop.progress.step == loop.checkpoints.saved_step == 4  # where the third update's vote to save was read


def snapshot(loop):
    return torch.cat([weight.detach().flatten() for weight in loop.checkpoints.model.parameters()])


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
    assert [path.name for path in list_checkpoints(loop.checkpoints.directory)] == [
        f"step-{loop.progress.step:07}-interrupted"
    ]
    again = make_loop(**settings, resume_from_checkpoint="latest")
    again.train()
    assert torch.equal(snapshot(again), expected)


def test_the_gradient_norm_of_a_row_is_the_mean_of_its_updates_before_clipping(make_loop, monkeypatch):
    fail_at(monkeypatch, {5})
    loop, norms = make_loop(logging_steps=4, max_grad_norm=0.01), []
    optimize = loop.optimize

    def watched(*given, **named):
        result = optimize(*given, **named)
        norms.append(result.read().gradient_norm)
        return result

    monkeypatch.setattr(loop, "optimize", watched)
    loop.train()
    groups = norms[:4], norms[5:8], norms[8:]
    assert [row["gradient_norm"] for row in rows(loop)] == pytest.approx([sum(g) / len(g) for g in groups], abs=1e-5)
    assert min(rows(loop)[0]["gradient_norm"], norms[0]) > 0.01


def test_after_a_resume_the_rate_is_that_of_the_updates_since(make_loop, monkeypatch):
    settings = {"max_steps": 10, "logging_steps": 10, "save_steps": 9}
    loop = make_loop(**settings)
    monkeypatch.setattr(loop.stop, "reason", lambda: "asked to end" if loop.progress.step == 9 else None)
    with pytest.raises(Interrupted):
        loop.train()
    again, clock = make_loop(**settings, resume_from_checkpoint="latest"), [0.0]
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    before, optimize = again.progress.sums.target_tokens, again.optimize

    def slowly(*given, **named):
        clock[0] += 2.0
        return optimize(*given, **named)

    monkeypatch.setattr(again, "optimize", slowly)
    again.train()
    [row] = rows(again)
    assert row["step"] == 10
    assert before > 0
    assert row["target_tokens_per_second"] == (row["target_tokens"] - before) / 2


@pytest.mark.parametrize(("seconds_left", "limit"), [(400.0, ""), (380.0, "; max_time ends it before that")])
def test_it_says_once_how_long_the_training_will_take(make_loop, monkeypatch, capsys, seconds_left, limit):
    loop, clock = make_loop(max_steps=60, eval_steps=4, save_steps=3), [0.0]
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(loop.stop, "seconds_left", lambda: seconds_left)

    def take(owner, name, seconds):
        work = getattr(owner, name)

        def slowly(*given, **named):
            clock[0] += seconds()
            return work(*given, **named)

        monkeypatch.setattr(owner, name, slowly)

    take(loop, "optimize", lambda: 10.0 if loop.progress.step > 8 else 500.0)
    take(loop, "evaluate", lambda: 1000.0)
    take(loop.checkpoints, "save", lambda: 1000.0)
    loop.train()
    assert forecasts(capsys) == [
        "About 6 min 30 s of training left, by the median time of updates 2 to 21; evaluations and checkpoints come "
        f"on top{limit}"
    ]


def test_a_resumed_run_says_from_where_and_how_long_it_will_take(make_loop, monkeypatch, capsys):
    loop = make_loop(max_steps=40)
    monkeypatch.setattr(loop.stop, "reason", lambda: "asked to end" if loop.progress.step == 10 else None)
    with pytest.raises(Interrupted):
        loop.train()
    capsys.readouterr()
    again = make_loop(max_steps=40, resume_from_checkpoint="latest")
    assert "at step 10\n" in capsys.readouterr().out
    again.train()
    (said,) = forecasts(capsys)
    assert "by the median time of updates 12 to 31;" in said


def test_a_run_that_is_over_by_then_does_not_say_how_long_it_will_take(make_loop, capsys):
    make_loop(max_steps=21).train()
    assert forecasts(capsys) == []


def forecasts(capsys) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("About")]


def test_a_line_that_training_would_drop_for_its_length_does_not_stall_an_evaluation(make_loop, tmp_path, capsys):
    words = " ".join(["one"] * 3000)
    (tmp_path / "long.tsv").write_text(f"{words}\t{words}\none two\tzwei eins\n", encoding="utf-8")
    loop = make_loop(validation_file=str(tmp_path / "long.tsv"), max_target_length=50)
    lengths = []
    loop.checkpoints.model.model.encoder.register_forward_pre_hook(
        lambda module, arguments, named: lengths.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    evaluation = loop.evaluate("validation")
    assert evaluation.truncated_sources == 1
    assert max(lengths) == 40
    assert "1 translated up to max_source_length" in capsys.readouterr().out


def test_text_that_was_tokenized_is_scored_by_its_tokens(make_loop):
    for tokenized, signature in ((False, "tok:13a"), (True, "tok:none|smooth:none")):
        evaluation = make_loop(tokenized=tokenized).evaluate("validation")
        assert signature in evaluation.sacrebleu_signature


def test_empty_translations_are_a_sentence_of_the_run(make_loop, monkeypatch, capsys, recwarn):
    monkeypatch.setattr(
        "vaswani.evaluation.translate_all", lambda model, tokenizer, sources, **how: ["", *sources[1:]]
    )
    make_loop().evaluate("validation")
    assert "\nwarning: 1 of 4 hypotheses are empty: " in capsys.readouterr().out
    assert not [warning for warning in recwarn if "empty" in str(warning.message)]


def test_it_scores_in_its_language_or_without_one_that_moses_does_not_know(make_loop, monkeypatch):
    loop, asked = make_loop(), []

    def evaluate(*given, target_lang, **named):
        asked.append(target_lang)
        raise LookupError

    monkeypatch.setattr(loop_module, "evaluate", evaluate)
    for language in ("de_AT", "zh", "tr", "tree"):
        loop.data.target_lang = language
        with pytest.raises(LookupError):
            loop.evaluate("validation")
    assert asked == ["de_AT", "zh", None, "tree"]


def test_an_evaluation_is_left_as_soon_as_the_run_should_end(make_loop, monkeypatch):
    loop = make_loop()
    monkeypatch.setattr(loop_module, "evaluate", lambda *given, **named: time.sleep(60))
    started = time.monotonic()
    with loop.stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"):
            loop.evaluate("validation")
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

    def evaluate(split):
        at[loop.progress.step] = snapshot(loop)
        return SimpleNamespace(nll=next(scores))

    monkeypatch.setattr(loop, "evaluate", evaluate)
    loop.train()
    assert loop.progress.step == 8
    assert sorted(path.name for path in loop.checkpoints.directory.iterdir()) == ["step-0000004-best", "step-0000008"]
    assert not torch.equal(snapshot(loop), at[4])
    assert loop.checkpoints.choose_weights() == (1, 4)
    assert torch.equal(snapshot(loop), at[4])


def test_a_run_that_has_stopped_early_stays_stopped_when_resumed(make_loop, monkeypatch):
    stops = {"max_steps": 50, "eval_steps": 2, "early_stopping_patience": 1}
    loop = make_loop(**stops)
    scores = iter([3.0, 4.0])
    monkeypatch.setattr(loop, "evaluate", lambda split: SimpleNamespace(nll=next(scores)))
    loop.train()
    again = make_loop(**stops, resume_from_checkpoint="latest")
    assert again.progress == loop.progress
    again.train()
    assert again.progress.step == 4


@pytest.mark.parametrize("save_steps", [0, 2])
def test_a_run_that_stops_early_logs_all_its_updates_once(make_loop, monkeypatch, save_steps):
    stops = {"max_steps": 50, "eval_steps": 2, "early_stopping_patience": 1, "logging_steps": 100}
    loop = make_loop(**stops, save_steps=save_steps)
    monkeypatch.setattr(loop, "evaluate", lambda split: SimpleNamespace(nll=loop.progress.step))
    loop.train()
    logged = rows(loop)
    assert [row["step"] for row in logged] == [2, 4]
    again = make_loop(**stops, save_steps=save_steps, resume_from_checkpoint="latest")
    monkeypatch.setattr(again, "evaluate", loop.evaluate)
    again.train()
    assert rows(again) == logged


def test_a_run_that_is_resumed_from_its_best_weights_does_not_save_them_again(make_loop, monkeypatch):
    stops = {"max_steps": 4, "eval_steps": 2, "early_stopping_patience": 2}
    loop = make_loop(**stops)
    scores, evaluate = iter([4.0, 3.0]), loop.evaluate
    monkeypatch.setattr(loop, "evaluate", lambda split: replace(evaluate(split), nll=next(scores)))
    loop.train()
    logged = rows(loop)
    again = make_loop(**stops, resume_from_checkpoint="latest")
    again.train()
    assert sorted(path.name for path in again.checkpoints.directory.iterdir()) == ["step-0000004-best"]
    assert rows(again) == logged  # nor evaluate them again


def test_an_evaluation_that_a_checkpoint_does_not_know_is_made_when_it_is_resumed(make_loop):
    loop = make_loop(max_steps=6, eval_steps=2, save_steps=2)
    loop.train()
    which = str(loop.checkpoints.directory / "step-0000004")  # saved before its weights were evaluated
    again = make_loop(max_steps=6, eval_steps=2, save_steps=2, resume_from_checkpoint=which)
    again.train()
    assert [row["step"] for row in rows(again) if "split" in row] == [2, 4]
    assert [step for step, _ in again.progress.scores] == [2, 4]


def test_early_stopping_that_begins_late_counts_from_there(make_loop, monkeypatch):
    loop = make_loop(max_steps=6, eval_steps=2, save_steps=6)
    scores = iter([1.0, 3.0, 4.0, 3.5, 3.6])
    evaluate = lambda split: SimpleNamespace(nll=next(scores))  # noqa: E731
    monkeypatch.setattr(loop, "evaluate", evaluate)
    loop.train()
    given = {"max_steps": 50, "eval_steps": 2, "early_stopping_patience": 1, "resume_from_checkpoint": "latest"}
    again = make_loop(**given)
    monkeypatch.setattr(again, "evaluate", evaluate)
    again.train()
    assert again.progress.scores == [[6, 4.0], [8, 3.5], [10, 3.6]]
    assert again.checkpoints.choose_weights() == (1, 8)


@pytest.mark.parametrize("harm", ["it comes later", "it is damaged"])
def test_early_stopping_counts_anew_where_a_run_is_resumed_without_its_best_weights(make_loop, monkeypatch, harm):
    stops = {"max_steps": 8, "eval_steps": 4, "save_steps": 3, "early_stopping_patience": 2}
    loop = make_loop(**stops)
    scores = iter([1.0, 0.5, 2.0, 3.0, 4.0])
    evaluate = lambda split: SimpleNamespace(nll=next(scores))  # noqa: E731
    monkeypatch.setattr(loop, "evaluate", evaluate)
    loop.train()
    which = str(loop.checkpoints.directory / "step-0000006")
    if harm == "it is damaged":
        which = "latest"
        for name in ("step-0000008", "step-0000008-best"):
            (loop.checkpoints.directory / name / "model.safetensors").unlink()
    again = make_loop(**stops | {"max_steps": 50}, resume_from_checkpoint=which)
    monkeypatch.setattr(again, "evaluate", evaluate)
    again.train()
    assert again.progress.scores == [[8, 2.0], [12, 3.0], [16, 4.0]]  # those of update 4 gave way to those of 8
    assert again.checkpoints.choose_weights() == (1, 8)


def test_the_measure_of_early_stopping_must_stay(make_loop, monkeypatch):
    stops = {"max_steps": 4, "eval_steps": 2, "early_stopping_patience": 2}
    loop = make_loop(**stops)
    monkeypatch.setattr(loop, "evaluate", lambda split: SimpleNamespace(nll=1.0))
    loop.train()
    resumed = stops | {"resume_from_checkpoint": "latest"}
    with pytest.raises(UserError, match=r"metric_for_best_model='chrf': the best weights .* chosen by 'nll'"):
        make_loop(**resumed, metric_for_best_model="chrf")
    make_loop(**resumed | {"early_stopping_patience": 5})


def test_checkpoints_by_minutes(make_loop, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(loop_module.time, "perf_counter", lambda: clock.now)
    loop = make_loop(save_minutes=10, max_steps=12)
    step = loop.step

    def four_minutes_later(update):
        clock.now += 240
        step(update)

    monkeypatch.setattr(loop, "step", four_minutes_later)
    loop.train()
    steps = [int(path.name[5:]) for path in sorted(loop.checkpoints.directory.iterdir())]
    assert steps == [3, 6, 9, 12]  # after 12, 24, 36 minutes, and at the end


@pytest.mark.parametrize(
    ("given", "saved"),
    [({"save_steps": 5}, [5, 10, 12]), ({"save_steps": 6}, [6, 12]), ({"save_steps": 0}, [])],
)
def test_checkpoints_by_steps_and_at_the_end(make_loop, given, saved):
    loop = make_loop(**given)
    loop.train()
    assert [int(path.name[5:]) for path in sorted(loop.checkpoints.directory.iterdir())] == saved


def test_dropout_depends_on_seed_step_and_process_only(make_loop, monkeypatch):
    def seeds(start, process=0, **settings):
        loop, seen = make_loop(overwrite_output_dir=True, max_steps=8, **settings), {}
        with monkeypatch.context() as patch:
            patch.setattr(torch, "manual_seed", lambda seed: seen.setdefault(loop.progress.step, seed))
            patch.setattr(type(loop.accelerator), "process_index", process)
            for loop.progress.step in range(start + 1, 9):
                loop.seed_dropout()
        return seen

    whole, rest = seeds(0), seeds(5)
    assert rest == {step: whole[step] for step in (6, 7, 8)}
    assert len(set(whole.values())) == 8
    assert not set(seeds(0, seed=5).values()) & set(whole.values())
    assert not set(seeds(0, process=1).values()) & set(whole.values())


def test_the_settings_reach_optimizer_objective_and_rate(make_loop, capsys):
    given = {"adam_beta1": 0.8, "adam_beta2": 0.91, "adam_epsilon": 1e-7, "label_smoothing": 0.3}
    given |= {"rdrop_alpha": 2.5, "max_time": 1e6}
    loop = make_loop(**given, warmup_steps=5, learning_rate_factor=0.7, max_steps=7)
    assert loop.stop.deadline == STARTED + 60e6
    assert "Between the matrix products: kernels in C" in capsys.readouterr().out
    assert loop.objective.kernels_dtype == torch.float32
    defaults = loop.optimizer.optimizer.defaults
    assert (defaults["betas"], defaults["eps"]) == ((0.8, 0.91), 1e-7)
    assert (loop.objective.label_smoothing, loop.objective.rdrop_alpha) == (0.3, 2.5)
    rates, optimize = [], loop.optimize

    def watched(*arguments, **named):
        result = optimize(*arguments, **named)
        rates.append(loop.optimizer.param_groups[0]["lr"])
        return result

    loop.optimize = watched
    loop.train()
    d_model = loop.checkpoints.model.config.d_model
    assert rates == [0.7 * learning_rate(step, d_model, 5) for step in range(1, 8)]
    assert [row["learning_rate"] for row in rows(loop)] == rates


def test_batches_are_loaded_by_as_many_processes_as_the_settings_say(make_loop, monkeypatch):
    asked = []
    monkeypatch.setattr(loop_module, "load_updates", lambda *given: asked.append(given[3]) or iter([None]))
    for given in ({}, {"dataloader_num_workers": 3}):
        next(make_loop(overwrite_output_dir=True, **given).updates())
    assert asked == [0, 3]


def test_without_padding_a_run_learns_the_same_from_fewer_batches(make_loop, monkeypatch, capsys):
    given = {"max_tokens_per_batch": 300, "max_tokens_per_device": 200, "length_groups": 4, "max_steps": 6}
    torch.manual_seed(1)
    padded = make_loop(**given)
    batches = [len(next(padded.updates()).batches)]
    padded.train()
    wanted = rows(padded)
    monkeypatch.setattr(loop_module, "choose_packing", lambda *given: True)
    stand_in(monkeypatch)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    torch.manual_seed(1)
    packed = make_loop(**given, torch_compile=True)
    assert "torch_compile=True: nothing is compiled, since kernels compute" in capsys.readouterr().out
    assert isinstance(packed.objective, PackedObjective)
    assert packed.objective.label_smoothing == 0.1
    assert packed.packed_tokens == 200
    batches.append(len(next(packed.updates()).batches))
    packed.train()
    assert 1 < batches[1] < batches[0]
    assert any(row["density"] < 1 for row in wanted)
    for one, other in zip(rows(packed)[-6:], wanted, strict=True):
        assert one["nll"] == pytest.approx(other["nll"], rel=1e-4)
        assert one["target_tokens"] == other["target_tokens"]
        assert one["density"] == 1


def test_matrices_decay_with_the_learning_rate_and_nothing_else_does(make_loop):
    def weights(**given) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        loop = make_loop(overwrite_output_dir=True, max_steps=1, adam_epsilon=1e-3, **given)
        before = {name: weight.detach().clone() for name, weight in loop.checkpoints.model.named_parameters()}
        loop.optimize(next(loop.updates()), 0.01, wants_stop=False, wants_save=False)
        return {name: weight.detach() - before[name] for name, weight in loop.checkpoints.model.named_parameters()} | {
            f"{name} before": weight for name, weight in before.items()
        }

    plain, decayed = weights(), weights(weight_decay=0.5)
    for name in [name for name in plain if not name.endswith("before")]:
        shrunk = 0.01 * 0.5 * plain[f"{name} before"] if plain[name].dim() > 1 else torch.zeros(())
        assert torch.allclose(decayed[name], plain[name] - shrunk, atol=1e-6), name


def test_with_bpe_dropout_each_epoch_has_its_own_ids_and_a_resumed_run_the_same(make_loop):
    def ids(loop, epochs: int) -> list[tuple[int, int, list]]:
        updates = takewhile(lambda update: update.epoch < epochs, loop.updates())
        return [(each.epoch, each.index, [list(without_padding(batch)) for batch in each.batches]) for each in updates]

    def without_padding(batch) -> Iterator[list[int]]:
        for row, mask in zip(batch.input_ids, batch.attention_mask, strict=True):
            yield row[mask.bool()].tolist()

    settings = {"bpe_dropout": 0.2, "max_train_samples": 60, "overwrite_output_dir": True}
    plain, dropped = ids(make_loop(**settings | {"bpe_dropout": 1e-12}), 3), ids(make_loop(**settings), 3)
    per_epoch = [[index for number, index, _ in dropped if number == epoch] for epoch in range(3)]
    assert per_epoch == [[*range(1, len(indices) + 1)] for indices in per_epoch]
    assert [epoch for epoch, *_ in dropped] == [epoch for epoch in range(3) for _ in per_epoch[epoch]]
    assert min(map(len, per_epoch)) > 1
    tokens = [sum(len(row) for *_, batches in rows for batch in batches for row in batch) for rows in (plain, dropped)]
    assert tokens[1] > 1.1 * tokens[0]
    words = [
        sorted(row for number, _, batches in dropped if number == epoch for batch in batches for row in batch)
        for epoch in (0, 1)
    ]
    assert words[0] != words[1]
    other = ids(make_loop(**settings, seed=1), 1)
    assert words[0] != sorted(row for _, _, batches in other for batch in batches for row in batch)
    for at in (1, [epoch for epoch, *_ in dropped].count(0), len(dropped) - 1):  # within an epoch, and between two
        resumed = make_loop(**settings)
        resumed.progress.epoch, resumed.progress.position = dropped[at - 1][:2]
        assert ids(resumed, 3) == dropped[at:]


def test_what_bpe_dropout_makes_too_long_is_said(make_loop, capsys):
    next(make_loop(bpe_dropout=0.9, max_source_length=14, max_target_length=14).updates())
    said = capsys.readouterr().out
    assert re.search(r"train, as BPE-dropout divides it in this epoch: .* [1-9][\d,]* too long", said)


def test_a_run_is_not_resumed_behind_its_end(make_loop):
    make_loop(save_steps=2, max_steps=4).train()
    assert make_loop(max_steps=4, resume_from_checkpoint="latest").progress.step == 4
    with pytest.raises(UserError, match="max_steps=3 must be at least 4, the step of the checkpoint"):
        make_loop(max_steps=3, resume_from_checkpoint="latest")


def test_a_refused_resume_sets_no_later_checkpoint_aside(make_loop):
    loop = make_loop(save_steps=2, max_steps=6)
    loop.train()
    which = str(loop.checkpoints.directory / "step-0000004")
    names = lambda: sorted(path.name for path in loop.checkpoints.directory.iterdir())  # noqa: E731
    before = names()
    with pytest.raises(UserError, match="max_steps=3 must be at least 4"):
        make_loop(max_steps=3, resume_from_checkpoint=which)
    assert names() == before
    make_loop(max_steps=6, resume_from_checkpoint=which)
    assert names() == ["set-aside-step-0000006", "step-0000002", "step-0000004"]


def test_bpe_dropout_of_a_tokenizer_that_has_none_is_refused(make_loop, tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"</s>": 0, "one": 1, "<pad>": 2}, unk_token="<pad>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    wrap_tokenizer(tokenizer).save_pretrained(tmp_path / "words")
    with pytest.raises(UserError, match=r"^bpe_dropout=0\.1 needs a tokenizer that divides"):
        make_loop(bpe_dropout=0.1, vocab_size=3, tokenizer_name=str(tmp_path / "words"))


def test_a_long_gradient_is_shrunk_and_a_short_one_is_not(make_loop):
    """Adam's first moment of the first update is a tenth of the gradient."""

    def first_moment(limit: float | None) -> tuple[torch.Tensor, float]:
        torch.manual_seed(1)
        loop = make_loop(overwrite_output_dir=True, **({} if limit is None else {"max_grad_norm": limit}))
        result = loop.optimize(next(loop.updates()), 0.0, wants_stop=False, wants_save=False).read()
        moments = [state["exp_avg"].flatten() for state in loop.optimizer.optimizer.state.values()]
        return torch.cat(moments) / 0.1, result.gradient_norm

    whole, norm = first_moment(None)
    assert whole.norm().item() == pytest.approx(norm, rel=1e-4)
    shrunk, reported = first_moment(norm / 3)
    assert reported == pytest.approx(norm, rel=1e-4)
    assert torch.allclose(shrunk, whole / 3, rtol=1e-3, atol=1e-7)
    assert torch.allclose(first_moment(2 * norm)[0], whole, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_without_smoothing_the_loss_is_the_likelihood(make_loop, label_smoothing):
    loop = make_loop(label_smoothing=label_smoothing, max_steps=2)
    loop.train()
    assert all((row["loss"] == pytest.approx(row["nll"], abs=1e-4)) == (label_smoothing == 0.0) for row in rows(loop))


def test_evaluations_on_the_way_are_greedy_and_the_last_ones_search_as_the_model_does(make_loop):
    loop = make_loop(eval_steps=4)
    decoding = loop.checkpoints.model.generation_config
    decoding.do_sample = True
    loop.train()
    decoding.do_sample = False
    on_the_way = [row for row in rows(loop) if "split" in row]
    # The one after the last update, 12, is that of the published weights, which the run does behind the loop.
    assert [(row["step"], row["decoding"]) for row in on_the_way] == [(4, "greedy"), (8, "greedy")]
    last = loop.evaluate("validation", ChosenWeights(3, 10))
    assert (last.decoding, last.averaged_checkpoints, last.checkpoint) == ("beam 4, alpha 0.6", 3, "step 10")
    assert rows(loop)[-1] == last.to_row()
    kept = {path.name for path in (loop.logbook.path.parent / "outputs").iterdir()}
    names = ("source", "reference", "step-0000004", "step-0000008", "final")
    assert kept == {f"validation.{name}.txt" for name in names}
    assert loop.evaluate("validation", ChosenWeights(1, None)).checkpoint == "step 12"


def test_sums_are_those_of_all_updates_since_the_last_row(make_loop, tmp_path):
    each, both = make_loop(max_steps=2), make_loop(max_steps=2, logging_steps=2, output_dir=str(tmp_path / "both"))
    torch.manual_seed(1)
    both.checkpoints.model.load_state_dict(each.checkpoints.model.state_dict())
    planned = list(islice(each.updates(), 2))
    each.train()
    first, second = rows(each)
    assert [row["epoch"] for row in (first, second)] == [round(step / planned[0].epoch_length, 4) for step in (1, 2)]
    both.train()
    (row,) = rows(both)
    assert row["target_tokens"] == first["target_tokens"] + second["target_tokens"]
    nll = first["nll"] * first["target_tokens"] + second["nll"] * second["target_tokens"]
    assert row["nll"] == pytest.approx(nll / row["target_tokens"], abs=1e-4)
    real, padded = (sum(getattr(update, name) for update in planned) for name in ("real_tokens", "padded_tokens"))
    assert row["density"] == round(real / padded, 4) < 1


def test_each_process_gets_its_share_of_an_update(make_loop, monkeypatch):
    loop = make_loop(max_tokens_per_device=100)
    whole, shares = next(loop.updates()), []
    monkeypatch.setattr(type(loop.accelerator), "num_processes", 2)
    for process in (0, 1):
        monkeypatch.setattr(type(loop.accelerator), "process_index", process)
        shares.append(next(loop.updates()))
    pairs = [np.concatenate(update.pairs).tolist() for update in (whole, *shares)]
    assert all(pairs)
    assert sorted(pairs[1] + pairs[2]) == sorted(pairs[0])
    assert {update.target_tokens for update in shares} == {whole.target_tokens}


def test_an_evaluation_takes_batches_that_fit_a_device(make_loop):
    loop, sizes = make_loop(max_tokens_per_batch=1000, max_tokens_per_device=40, max_eval_samples=20), []
    # The search gives sources by name, the likelihood by place.
    loop.checkpoints.model.register_forward_pre_hook(
        lambda module, given: sizes.append(given[0].numel()) if given else None
    )
    loop.evaluate("validation")
    assert sizes
    assert max(sizes) <= 40


def test_gradients_are_measured_and_clipped_without_the_scale_of_fp16(make_loop, monkeypatch):
    def norms(scale: float) -> list[float]:
        torch.manual_seed(1)
        loop = make_loop(overwrite_output_dir=True, max_steps=2, max_grad_norm=0.01)
        backward, weights = loop.accelerator.backward, loop.weights
        monkeypatch.setattr(loop.accelerator, "backward", lambda loss: backward(loss * scale))
        monkeypatch.setattr(
            loop.accelerator,
            "unscale_gradients",
            lambda optimizer: [weight.grad.div_(scale) for weight in weights if weight.grad is not None],
        )
        loop.train()
        return [row["gradient_norm"] for row in rows(loop)]

    assert norms(1024.0) == pytest.approx(norms(1.0), rel=1e-4)


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
        return torch.cat([p.grad.flatten() for p in loop.checkpoints.trained.parameters() if p.grad is not None])

    right = gradient([1 / update.target_tokens] * len(sizes))
    mean_of_means = gradient([1 / size / len(sizes) for size in sizes])
    loop.optimizer.zero_grad()
    result = loop.optimize(update, 0.0, wants_stop=False, wants_save=False).read()
    norm = result.gradient_norm
    # Sums in another order differ by some 1e-5; the mean of means, the control, by far more.
    assert norm == pytest.approx(right.norm().item(), rel=1e-4)
    assert norm != pytest.approx(mean_of_means.norm().item(), rel=1e-3)
    assert np.isfinite(result.loss)
    assert (right - mean_of_means).abs().max() > 1e-3 * right.abs().max()


def test_every_weight_that_is_trained_has_a_gradient_in_each_update(make_loop, corpus, tmp_path):
    untied = json.loads((corpus / "config.json").read_text()) | {"tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(untied))
    loop = make_loop(config_name=str(tmp_path))
    loop.objective(*next(loop.updates()).batches[0]).loss.backward()
    without = [name for name, weight in loop.checkpoints.trained.named_parameters() if weight.grad is None]
    assert without == [
        name for name, weight in loop.checkpoints.trained.named_parameters() if not weight.requires_grad
    ]
    assert "model.shared.weight" in without  # other processes would wait for it


def test_key_biases_do_not_wander(make_loop):
    loop = make_loop()
    loop.train()
    biases = {name: bias for name, bias in loop.checkpoints.model.named_parameters() if name.endswith("_proj.bias")}
    assert all((bias == 0).all() == name.endswith("k_proj.bias") for name, bias in biases.items())
