"""The training loop (sections 5.1 to 5.4): one optimizer update after another, whatever interrupts it."""

import itertools
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast_object_list
from datasets import Dataset

from training.checkpoints.manager import CheckpointManager, ChosenWeights, Progress, Sums
from training.checkpoints.sharding import full_tensor
from training.data.bpe_dropout import DroppingEncoder
from training.data.loader import Update, load_batches, load_updates, plan_updates
from training.data.preparation import Prepared, describe_counts, encode_epoch, lengths
from training.objective.schedule import learning_rate
from training.settings import TrainingSettings
from training.trainer.logbook import FINAL, Logbook, as_time, output_name
from training.trainer.minimization import choose_packing, freeze_what_learns_nothing, make_objective, make_optimizer
from training.trainer.results import PendingResult, Unread, UpdateResult
from training.trainer.stopping import StopRequest, best_of, has_stalled
from vaswani.errors import UserError
from vaswani.evaluation import evaluate
from vaswani.interruption import Interrupted
from vaswani.models.trees_vaswani import TREES
from vaswani.results import Evaluation
from vaswani.scoring.protocols import is_known
from vaswani.scoring.references import EvaluationSet


MAX_SKIPPED_IN_A_ROW = 20  # more than fp16 needs to find its scale
TIMED = 20  # updates, after the first, by which it is judged how long the others will take
NOT_FINITE = "had a loss or gradient that is not finite"  # by which a sweep knows that a run has diverged


class TrainingLoop:
    """A run under way, from its first update or from where it was interrupted.

    Parameters
    ----------
    accelerator : Accelerator
    settings : TrainingSettings
    prepared : Prepared
        Text, tokenizer and encoded pairs.
    checkpoints : CheckpointManager
        Owns the model, saves and resumes.
    logbook : Logbook
    """

    def __init__(
        self,
        accelerator: Accelerator,
        settings: TrainingSettings,
        prepared: Prepared,
        checkpoints: CheckpointManager,
        logbook: Logbook,
    ):
        self.accelerator, self.prepared, self.checkpoints, self.logbook = accelerator, prepared, checkpoints, logbook
        self.data, self.optimization, self.run = settings.data, settings.optimization, settings.run
        self.logging_steps = settings.reporting.logging_steps
        self.stop = StopRequest(self.run.max_time)
        freeze_what_learns_nothing(checkpoints.trained)
        is_packed = choose_packing(checkpoints.trained, accelerator, self.optimization, logbook.say)
        self.packed_tokens = self.optimization.max_tokens_per_device if is_packed else None
        objective = make_objective(checkpoints.trained, accelerator, settings, is_packed, logbook.say)
        optimizer = make_optimizer(objective, self.optimization)
        self.objective, self.optimizer = accelerator.prepare(objective, optimizer)
        self.weights = list(checkpoints.trained.parameters())
        # A GPU goes on with the next update while the result of the last is read.
        self.reads_late = (
            accelerator.device.type == "cuda"
            and accelerator.scaler is None
            and accelerator.distributed_type != DistributedType.FSDP
        )
        self.unread: list[Unread] = []
        self.divider = None
        if self.data.bpe_dropout is not None:
            self.divider = DroppingEncoder(prepared.tokenizer, self.data.bpe_dropout, self.optimization.seed)
        self.progress = Progress()
        self.paused, self.ends = 0.0, list[float]()
        self.last_log_time = self.last_save_time = time.perf_counter()
        self.tokens_before = 0.0

    def resume(self) -> None:
        """Resume from a checkpoint, where the settings say so and there is one.

        Raises
        ------
        UserError
            If a checkpoint is asked for that is not good, is of another run, stops early by another measure or comes
            after the last update.
        """
        self.progress = self.checkpoints.resume(self.optimizer)
        if self.progress.step > self.optimization.max_steps:
            raise UserError(
                f"max_steps={self.optimization.max_steps} must be at least {self.progress.step}, the step of the "
                "checkpoint that is resumed"
            )
        self.keep_best_by(self.run.metric_for_best_model if self.run.early_stopping_patience is not None else "")
        self.checkpoints.set_superseded_aside()
        if self.run.resume_from_checkpoint:
            self.logbook.rewind(self.progress.step, [step for step, _ in self.progress.scores])

    def keep_best_by(self, measure: str) -> None:
        """Keep the scores so far if the best weights were chosen by this measure; refuse if by another."""
        progress = self.progress
        if progress.best_by and measure and progress.best_by != measure:
            raise UserError(
                f"metric_for_best_model={measure!r}: the best weights of this run so far were chosen by "
                f"{progress.best_by!r}, which must stay"
            )
        if progress.best_by == "" and measure and progress.scores:
            progress.scores.clear()
            self.logbook.say("No earlier best weights are kept: early stopping counts evaluations from here on")
        progress.best_by = measure

    def close(self) -> None:
        """Let go of what is spread over processes, before these part.

        The process group must not die with the reducer of DDP, which waits for threads while it holds Python's lock.
        """
        self.objective, self.optimizer = self.accelerator.free_memory(self.objective, self.optimizer)

    def train(self) -> None:
        """Minimize label-smoothed cross-entropy with Adam, evaluating and saving on the way.

        Raises
        ------
        Interrupted
            If it was asked to end; the run is saved.
        """
        self.objective.train()
        self.evaluate_if_due()
        self.last_log_time = self.last_save_time = time.perf_counter()
        self.tokens_before = self.progress.sums.target_tokens  # of a run that is resumed, counted by another clock
        with closing(self.updates()) as updates:  # its processes, which no signal ends
            while not self.is_finished():
                self.step(next(updates))
        if self.run.keeps_checkpoints and self.checkpoints.saved_step != self.progress.step:
            self.checkpoints.save(self.progress, self.optimizer)

    def updates(self) -> Generator[Update, None, None]:
        """Load this process's share of the updates that are still to be done.

        "Each training batch contained a set of sentence pairs containing approximately 25000 source tokens and 25000
        target tokens" (section 5.1).
        """
        start = self.progress.epoch, self.progress.position
        if self.divider is None:
            yield from self.load(self.prepared.encoded["train"], start)
        for epoch in itertools.count(self.progress.epoch):  # each with its own ids
            rows, counts = encode_epoch(self.prepared.text["train"], self.divider, self.data, epoch)
            if epoch == self.progress.epoch:
                self.logbook.say(f"train, as BPE-dropout divides it in this epoch: {describe_counts(counts)}")
            yield from self.load(rows, start, only=epoch)
            start = epoch + 1, 0

    def load(self, rows: Dataset, start: tuple[int, int], only: int | None = None) -> Iterator[Update]:
        """Load updates from an epoch and a place in it on, without end, or `only` those of one epoch."""
        workers = self.run.dataloader_num_workers
        if workers is None:
            workers = 0 if self.accelerator.device.type == "cpu" else 2
        processes = self.accelerator.process_index, self.accelerator.num_processes
        planned = plan_updates(lengths(rows), self.optimization, *processes, start)
        if only is not None:
            planned = itertools.takewhile(lambda update: update.epoch == only, planned)
        pad_token_id = self.checkpoints.model.config.pad_token_id
        return load_updates(planned, rows, pad_token_id, workers, self.packed_tokens)

    def is_finished(self) -> bool:
        """Return whether all updates are done, or early stopping ends them."""
        scores = [score for _, score in self.progress.scores]
        stalled = has_stalled(scores, self.run.metric_for_best_model, self.run.early_stopping_patience)
        return stalled or self.progress.step >= self.optimization.max_steps

    def step(self, update: Update) -> None:
        """Do one update, then whatever is due after it."""
        progress = self.progress
        progress.step += 1
        rate = self.learning_rate()
        self.seed_dropout()
        reason = self.stop.reason()
        try:
            result = self.optimize(update, rate, wants_stop=reason is not None, wants_save=self.save_is_due())
        except Interrupted as interrupted:
            progress.step -= 1
            self.interrupt(str(interrupted))
        progress.epoch, progress.position, progress.epoch_length = update.epoch, update.index, update.epoch_length
        self.unread.append(Unread(progress.step, update, result))
        wants_stop, wants_save = self.read_results(leave=int(self.reads_late and not self.needs_result()))
        if self.log_is_due():
            self.log(rate)
        if wants_save:
            wants_stop = self.read_results()[0] or wants_stop
        paused = time.perf_counter()
        if wants_save:
            self.checkpoints.save(progress, self.optimizer)
            self.last_save_time = time.perf_counter()
        self.evaluate_if_due()
        if wants_stop:
            self.interrupt(reason or "another process was asked to end")
        self.paused += time.perf_counter() - paused

    def needs_result(self) -> bool:
        """Return whether something may be due after this update that needs its result: the same for all processes."""
        step, every = self.progress.step, (self.logging_steps, self.run.save_steps, self.run.eval_steps)
        return step == self.optimization.max_steps or any(steps and step % steps == 0 for steps in every)

    def read_results(self, leave: int = 0) -> tuple[bool, bool]:
        """Read and account for what is unread, but for the last `leave`; return votes to stop, and to save."""
        wants_stop = wants_save = False
        while len(self.unread) > leave:
            step, update, pending = self.unread.pop(0)
            result = pending.read()
            self.account(step, update, result)
            self.logbook.progress.update()
            self.estimate_time(step)
            wants_stop, wants_save = wants_stop or result.stop_votes > 0, wants_save or result.save_votes > 0
        return wants_stop, wants_save

    def clock(self) -> float:
        """Return seconds, of which saving and evaluating take none."""
        return time.perf_counter() - self.paused

    def estimate_time(self, step: int) -> None:
        """Say once how long the training will take: by the median, since the first updates may take far longer."""
        if len(self.ends) > TIMED:
            return
        self.ends.append(self.clock())
        left = self.optimization.max_steps - step
        if len(self.ends) > TIMED and left:
            seconds = left * float(np.median(np.diff(self.ends)))
            limit = "; max_time ends it before that" if seconds > self.stop.seconds_left() else ""
            self.logbook.say(
                f"About {as_time(seconds)} of training left, by the median time of updates {step - TIMED + 1:,} to "
                f"{step:,}; evaluations and checkpoints come on top{limit}"
            )

    def learning_rate(self) -> float:
        """Return the rate of this update: Eq. 3 of section 5.3, times the factor of the settings."""
        d_model = self.checkpoints.model.config.d_model
        rate = learning_rate(self.progress.step, d_model, self.optimization.warmup_steps)
        return self.optimization.learning_rate_factor * rate

    def seed_dropout(self) -> None:
        """Make dropout a pure function of seed, update and process, so that resuming need not restore a generator."""
        numbers = [self.optimization.seed, self.progress.step, self.accelerator.process_index]
        state = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(state >> np.uint64(1)))

    def optimize(self, update: Update, rate: float, wants_stop: bool, wants_save: bool) -> PendingResult:
        """Do one optimizer update, whose loss is the mean over the target tokens of all micro-batches and processes.

        An update whose loss or gradient is not finite leaves the weights as they are. So does one that a signal ends
        between two micro-batches, which several processes do not do: they have to agree first. Their votes travel
        with the sums of the loss, in one reduction.

        Raises
        ------
        Interrupted
            If a signal ended it; nothing has changed.
        """
        accelerator, device = self.accelerator, self.accelerator.device
        sums = torch.zeros(2, device=device)
        # Data-parallel training averages gradients over the processes, hence their number.
        scale = accelerator.num_processes / update.target_tokens
        for number, batch in enumerate(update.batches, start=1):
            if accelerator.num_processes == 1 and number > 1 and self.stop.signal is not None:
                raise Interrupted(self.stop.signal)  # an update may take minutes on a CPU
            is_last = number == len(update.batches)
            with nullcontext() if is_last else accelerator.no_sync(self.objective):
                parts = self.objective(*(tensor.to(device, non_blocking=True) for tensor in batch))
                accelerator.backward(parts.loss * scale)
            sums += torch.stack([parts.loss.detach(), parts.nll])
        accelerator.unscale_gradients(self.optimizer)
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
        # Pinned, since a GPU would wait for all it was given before it copied other memory.
        votes = torch.tensor([float(wants_stop), float(wants_save)], pin_memory=device.type == "cuda")
        votes = votes.to(device, non_blocking=True)
        totals = torch.cat([accelerator.reduce(torch.cat([sums, votes])), norm.reshape(1)])
        result = PendingResult(totals)
        if self.optimization.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.weights, self.optimization.max_grad_norm, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.reads_late:  # the optimizer, too, then learns on the device whether to leave the weights as they are
            self.optimizer.optimizer.found_inf = 1.0 - totals.sum().isfinite().float()
        # With fp16 the scaler must see every update: it skips by itself, and adapts its scale.
        if self.reads_late or accelerator.scaler is not None or result.read().is_finite:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return result

    def account(self, step: int, update: Update, result: UpdateResult) -> None:
        """Add an update to the sums of the next log row, or to the skipped ones.

        Raises
        ------
        UserError
            If too many in a row were skipped.
        """
        progress = self.progress
        if result.is_finite:
            progress.skipped_in_a_row = 0
            padded_tokens = update.real_tokens if self.packed_tokens else update.padded_tokens
            tokens = update.target_tokens, update.real_tokens, padded_tokens
            progress.sums = progress.sums.plus(Sums(result.loss, result.nll, *tokens, result.gradient_norm, 1.0))
            return
        progress.skipped_updates += 1
        progress.skipped_in_a_row += 1
        first = ", ".join(str(index) for index in np.concatenate(update.pairs)[:5])
        batch = f"update {update.index} of epoch {update.epoch}, training pairs {first}, ..."
        self.logbook.say(
            f"step {step}: loss {result.loss}, gradient norm {result.gradient_norm}: update skipped ({batch})"
        )
        if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise UserError(
                f"{MAX_SKIPPED_IN_A_ROW} updates in a row {NOT_FINITE}, the last at step {step} ({batch}): "
                f"lower learning_rate_factor={self.optimization.learning_rate_factor} or raise "
                f"warmup_steps={self.optimization.warmup_steps}"
            )

    def log(self, rate: float) -> None:
        """Log the updates since the last row: losses as means over their target tokens."""
        progress, now = self.progress, self.clock()
        sums, tokens = progress.sums, progress.sums.target_tokens
        self.logbook.log(
            {
                "step": progress.step,
                "loss": round(sums.loss / tokens, 5) if tokens else None,
                "nll": round(sums.nll / tokens, 5) if tokens else None,
                "gradient_norm": round(sums.gradient_norms / sums.updates, 5) if sums.updates else None,
                "learning_rate": rate,
                "target_tokens": int(tokens),
                "target_tokens_per_second": round((tokens - self.tokens_before) / (now - self.last_log_time), 1),
                "density": round(sums.real_tokens / sums.padded_tokens, 4) if sums.padded_tokens else None,
                "skipped_updates": progress.skipped_updates,
                "epoch": round(progress.epoch + progress.position / progress.epoch_length, 4),
            }
        )
        progress.sums, self.last_log_time, self.tokens_before = Sums(), now, 0.0

    def log_is_due(self) -> bool:
        """Return whether a row is due after this update, which may be the last, also where early stopping decides."""
        step = self.progress.step
        may_stop = self.run.early_stopping_patience is not None and step % self.run.eval_steps == 0
        return may_stop or step % self.logging_steps == 0 or step == self.optimization.max_steps

    def save_is_due(self) -> bool:
        """Return whether a checkpoint is due after this update; by minutes, only the main process knows."""
        run, step = self.run, self.progress.step
        is_last = step == self.optimization.max_steps
        if run.save_minutes:
            is_time = time.perf_counter() - self.last_save_time >= 60 * run.save_minutes
            return self.accelerator.is_main_process and (is_time or is_last)
        return bool(run.save_steps) and (step % run.save_steps == 0 or is_last)

    def interrupt(self, reason: str) -> NoReturn:
        """Save, unless that is done, and end."""
        self.read_results()
        if self.checkpoints.saved_step != self.progress.step:
            self.checkpoints.save(self.progress, self.optimizer, "interrupted")
        raise Interrupted(reason)

    def evaluate_if_due(self) -> None:
        """Evaluate on validation every `eval_steps` updates; save the best weights if early stopping is on."""
        run, progress = self.run, self.progress
        stops_early = run.early_stopping_patience is not None
        is_last = progress.step == self.optimization.max_steps and not stops_early
        if not run.eval_steps or progress.step == 0 or progress.step % run.eval_steps or is_last:
            return
        if [step for step, _ in progress.scores][-1:] == [progress.step]:
            return  # the checkpoint that was resumed knows it, and weights that are the best were saved
        self.checkpoints.collect()
        evaluation = self.evaluate("validation")
        progress.scores.append([progress.step, getattr(evaluation, run.metric_for_best_model)])
        if stops_early and self.best_step() == progress.step:
            self.checkpoints.save(progress, self.optimizer, "best")

    def best_step(self) -> int:
        """Return the step of the best evaluation."""
        scores = [score for _, score in self.progress.scores]
        return int(self.progress.scores[best_of(scores, self.run.metric_for_best_model)][0])

    def evaluate(self, split: str, chosen: ChosenWeights | None = None) -> Evaluation:
        """Evaluate on one split, log it and show a few translations; the main process does it, the others wait.

        On the way the search is greedy; at the end, when the weights to publish are `chosen`, it is the one that the
        published model does by itself.
        """
        averaged, step = chosen or ChosenWeights(1, None)
        text, encoded = self.prepared.text[split], self.prepared.encoded[split]
        language = self.data.target_lang
        pad_token_id = self.checkpoints.model.config.pad_token_id
        sources, references = ([sentence or "" for sentence in text[side]] for side in ("source", "target"))
        evaluation, translations = self.on_main_process(
            lambda: evaluate(
                self.checkpoints.model,
                self.prepared.tokenizer,
                EvaluationSet(split, split, sources, references),
                load_batches(encoded, self.optimization.max_tokens_per_device, pad_token_id),
                target_lang=language if language == TREES or is_known(language) else None,
                tokenized=self.data.tokenized,
                max_source_length=self.data.max_source_length,
                warn=lambda sentence: self.logbook.say(f"warning: {sentence}"),
                **({"num_beams": 1, "do_sample": False} if chosen is None else {}),
            )
        )
        evaluation = replace(
            evaluation,
            step=self.progress.step,
            averaged_checkpoints=averaged,
            checkpoint=f"step {self.progress.step if step is None else step}",
        )
        self.logbook.log(evaluation.to_row())
        self.logbook.show(evaluation, sources, references, translations)
        name = output_name(self.progress.step) if chosen is None else FINAL
        self.logbook.keep(split, name, sources, references, translations)
        return evaluation

    def on_main_process(self, work: Callable[[], Any]) -> Any:
        """Do work that changes nothing in the main process, and give its result to all; the others wait.

        Raises
        ------
        Interrupted
            In all processes, once the run is saved, if there was a reason to end meanwhile.
        """
        outcome: list[Any] = [None]
        if self.accelerator.is_main_process:
            with suppress(Interrupted), self.stop.raising():
                outcome = [work()]
        [result] = broadcast_object_list(outcome)
        if result is None:
            self.interrupt(self.stop.reason() or "the main process was asked to end")
        return result
