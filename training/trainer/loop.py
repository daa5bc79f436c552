"""The training loop (sections 5.1 to 5.4): one optimizer update after another, whatever interrupts it."""

import math
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from training.data.loader import Update, load_updates, plan_updates
from training.data.preparation import Prepared, lengths
from training.objective.loss import LabelSmoothedObjective
from training.objective.schedule import learning_rate
from training.settings import TrainingSettings
from training.trainer.checkpoint_manager import Keeper, Progress
from training.trainer.logbook import Logbook
from training.trainer.sharding import full_tensor
from training.trainer.stopping import Interrupted, StopRequest, best_of, has_stalled
from vaswani.errors import UserError
from vaswani.evaluation import Evaluation, evaluate
from vaswani.scoring.protocols import moses_languages
from vaswani.scoring.references import EvaluationSet


MAX_SKIPPED_IN_A_ROW = 20  # more than fp16 needs to find its scale


class TrainingLoop:
    """A run under way, from its first update or from where it was interrupted.

    Parameters
    ----------
    accelerator : Accelerator
    settings : TrainingSettings
    prepared : Prepared
        Text, tokenizer and encoded pairs.
    keeper : Keeper
        Owns the model, saves and resumes.
    logbook : Logbook
    """

    def __init__(
        self,
        accelerator: Accelerator,
        settings: TrainingSettings,
        prepared: Prepared,
        keeper: Keeper,
        logbook: Logbook,
    ):
        self.accelerator, self.settings, self.prepared = accelerator, settings, prepared
        self.keeper, self.logbook = keeper, logbook
        self.stop = StopRequest(settings.max_time)
        freeze_key_biases(keeper.trained)
        objective = LabelSmoothedObjective(keeper.trained, settings.label_smoothing)
        optimizer = torch.optim.Adam(
            objective.parameters(),
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_epsilon,
            fused=True,
        )
        if settings.torch_compile:
            objective.compile(dynamic=True)  # the model within stays as it is for evaluation
        self.objective, self.optimizer = accelerator.prepare(objective, optimizer)
        self.progress = Progress()
        self.logged = self.saved = time.perf_counter()

    def resume(self) -> None:
        """Go on from a checkpoint, where the settings say so and there is one.

        Raises
        ------
        UserError
            If a checkpoint is asked for that is not good, or is of another run.
        """
        self.progress = self.keeper.resume(self.optimizer)
        if self.settings.resume_from_checkpoint:
            self.logbook.rewind(self.progress.step, [step for step, _ in self.progress.scores])

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
            If it was asked to end; what it did is saved.
        """
        self.objective.train()
        self.evaluate_if_due()
        updates = self.updates()
        self.logged = self.saved = time.perf_counter()
        while not self.is_finished():
            self.step(next(updates))
        if self.settings.keeps_checkpoints and self.keeper.saved_step != self.progress.step:
            self.keeper.save(self.progress, self.optimizer)

    def updates(self) -> Any:
        """Load this process's share of the updates that are still to be done."""
        rows, settings, accelerator = self.prepared.encoded["train"], self.settings, self.accelerator
        workers = settings.dataloader_num_workers
        if workers is None:
            workers = 0 if accelerator.device.type == "cpu" else 2
        planned = plan_updates(
            lengths(rows),
            settings,
            accelerator.process_index,
            accelerator.num_processes,
            (self.progress.epoch, self.progress.position),
        )
        return load_updates(planned, rows, self.keeper.model.config.pad_token_id, workers)

    def is_finished(self) -> bool:
        """Return whether all updates are done, or early stopping ends them."""
        scores = [score for _, score in self.progress.scores]
        settings = self.settings
        stalled = has_stalled(scores, settings.metric_for_best_model, settings.early_stopping_patience)
        return stalled or self.progress.step >= settings.max_steps

    def step(self, update: Update) -> None:
        """Do one update, and what is due after it."""
        progress, settings = self.progress, self.settings
        progress.step += 1
        rate = settings.learning_rate_factor * learning_rate(
            progress.step, self.keeper.model.config.d_model, settings.warmup_steps
        )
        # Dropout is a pure function of the update, so that resuming need not restore any generator.
        state = np.random.SeedSequence([settings.seed, progress.step, self.accelerator.process_index])
        torch.manual_seed(int(state.generate_state(1, np.uint64)[0] >> np.uint64(1)))
        stop, save = self.stop.reason(), self.save_is_due()
        try:
            loss, nll, stop_votes, save_votes, norm = self.update(update, rate, float(stop is not None), float(save))
        except Interrupted as reason:
            progress.step -= 1
            self.interrupt(str(reason))
        progress.epoch, progress.position, progress.epoch_length = update[:3]
        self.account(update, loss, nll, norm)
        self.logbook.progress.update()
        if progress.step % settings.logging_steps == 0 or progress.step == settings.max_steps:
            self.log(rate)
        paused = time.perf_counter()
        if save_votes:
            self.keeper.save(self.progress, self.optimizer)
            self.saved = time.perf_counter()
        self.evaluate_if_due()
        if stop_votes:
            self.interrupt(stop or "another process was asked to end")
        self.logged += time.perf_counter() - paused

    def update(self, update: Update, rate: float, *votes: float) -> list[float]:
        """Do one optimizer update, whose loss is the mean over the target tokens of all micro-batches and processes.

        An update whose loss or gradient is not finite leaves the weights as they are. So does one that a signal ends
        between two micro-batches, which several processes do not do: they have to agree first.

        Returns
        -------
        list of float
            Sums over all processes of smoothed loss, plain negative log-likelihood and each of `votes`, and the norm
            of the gradient.
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
        gradients = [weight.grad for weight in self.keeper.trained.parameters() if weight.grad is not None]
        norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
        totals = accelerator.reduce(torch.cat([sums, torch.tensor(votes, device=device)]))
        totals = torch.cat([totals, norm.reshape(1)]).tolist()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # With fp16 the scaler must see every update: it skips by itself, and adapts its scale.
        if math.isfinite(totals[0] + totals[-1]) or accelerator.scaler is not None:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return totals

    def account(self, update: Update, loss: float, nll: float, norm: float) -> None:
        """Add an update to the sums of the next log row, or to the skipped ones.

        Raises
        ------
        UserError
            If too many in a row were skipped.
        """
        progress = self.progress
        if math.isfinite(loss + norm):
            progress.skipped_in_a_row = 0
            new = loss, nll, update.target_tokens, update.real_tokens, update.padded_tokens
            progress.sums = [total + value for total, value in zip(progress.sums, new, strict=True)]
            return
        progress.skipped_updates += 1
        progress.skipped_in_a_row += 1
        first = ", ".join(str(index) for index in np.concatenate(update.pairs)[:5])
        batch = f"update {update.index} of epoch {update.epoch}, training pairs {first}, ..."
        self.logbook.say(f"step {progress.step}: loss {loss}, gradient norm {norm}: update skipped ({batch})")
        if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise UserError(
                f"{MAX_SKIPPED_IN_A_ROW} updates in a row had a loss or gradient that is not finite, the last at step "
                f"{progress.step} ({batch}): lower learning_rate_factor={self.settings.learning_rate_factor} or "
                f"raise warmup_steps={self.settings.warmup_steps}"
            )

    def log(self, rate: float) -> None:
        """Log the updates since the last row, as means over their target tokens."""
        progress = self.progress
        loss, nll, tokens, real, positions = progress.sums
        now = time.perf_counter()
        self.logbook.log(
            {
                "step": progress.step,
                "loss": round(loss / tokens, 5) if tokens else None,
                "nll": round(nll / tokens, 5) if tokens else None,
                "learning_rate": rate,
                "target_tokens": int(tokens),
                "target_tokens_per_second": round(tokens / (now - self.logged), 1),
                "density": round(real / positions, 4) if positions else None,
                "skipped_updates": progress.skipped_updates,
                "epoch": round(progress.epoch + progress.position / progress.epoch_length, 4),
            }
        )
        progress.sums, self.logged = [0.0] * 5, now

    def save_is_due(self) -> bool:
        """Return whether the schedule has a checkpoint after this update; by minutes, only the main process knows."""
        settings, step = self.settings, self.progress.step
        if settings.save_minutes:
            elapsed = time.perf_counter() - self.saved >= 60 * settings.save_minutes
            return self.accelerator.is_main_process and (elapsed or step == settings.max_steps)
        return bool(settings.save_steps) and (step % settings.save_steps == 0 or step == settings.max_steps)

    def interrupt(self, reason: str) -> NoReturn:
        """Save, unless that is done, and end."""
        if self.keeper.saved_step != self.progress.step:
            self.keeper.save(self.progress, self.optimizer, "interrupted")
        raise Interrupted(reason)

    def evaluate_if_due(self) -> None:
        """Evaluate on validation after so many updates, once, and save the best weights where early stopping is on."""
        settings, progress = self.settings, self.progress
        stops_early = settings.early_stopping_patience is not None
        is_last = progress.step == settings.max_steps and not stops_early
        if not settings.eval_steps or progress.step == 0 or progress.step % settings.eval_steps or is_last:
            return
        if [step for step, _ in progress.scores][-1:] != [progress.step]:
            self.keeper.collect()
            evaluation = self.evaluate("validation")
            progress.scores.append([progress.step, getattr(evaluation, settings.metric_for_best_model)])
        if stops_early and self.best_step() == progress.step:
            self.keeper.save(progress, self.optimizer, "best")

    def best_step(self) -> int:
        """Return the step of the best evaluation."""
        scores = [score for _, score in self.progress.scores]
        return int(self.progress.scores[best_of(scores, self.settings.metric_for_best_model)][0])

    def evaluate(self, split: str, averaged: int | None = None) -> Evaluation:
        """Evaluate on one split, log it and show a few translations; the main process does it, the others wait.

        On the way the search is greedy; at the end, when it is known of how many checkpoints the weights are the
        average, it is the one that the published model does by itself.
        """
        outcome: list[Any] = [None]
        if self.accelerator.is_main_process:
            with suppress(Interrupted):
                outcome = [self.evaluate_here(split, averaged)]
        [evaluation] = broadcast_object_list(outcome)
        if evaluation is None:
            self.interrupt(self.stop.reason() or "the main process was asked to end")
        return evaluation

    def evaluate_here(self, split: str, averaged: int | None) -> Evaluation:
        """Evaluate, log and show in this process.

        Raises
        ------
        Interrupted
            If there is a reason to end.
        """
        step, language = self.progress.step, self.settings.target_lang
        # Early stopping publishes the weights of its best evaluation.
        is_best = averaged == 1 and self.settings.early_stopping_patience is not None
        text, encoded = self.prepared.text[split], self.prepared.encoded[split]
        sources, references = ([sentence or "" for sentence in text[side]] for side in ("source", "target"))
        with self.stop.raising():
            evaluation, translations = evaluate(
                self.keeper.model,
                self.prepared.tokenizer,
                EvaluationSet(split, split, sources, references),
                list(zip(encoded["input_ids"], encoded["labels"], strict=True)),
                self.settings.max_tokens_per_device,
                target_lang=language if language in moses_languages() else None,
                max_source_length=self.settings.max_source_length,
                **({"num_beams": 1, "do_sample": False} if averaged is None else {}),
            )
        evaluation = replace(
            evaluation,
            step=step,
            averaged_checkpoints=averaged or 1,
            checkpoint=f"step {self.best_step() if is_best else step}",
        )
        self.logbook.log(evaluation.to_row())
        self.logbook.show(evaluation, sources, references, translations)
        return evaluation


def freeze_key_biases(model: torch.nn.Module) -> None:
    """Keep the biases of W^K at zero, where they begin.

    Such a bias adds the same to all scores of a query, which the softmax cancels. So its gradient is rounding error
    alone, out of which Adam, that divides by its size, would make a random walk of full steps.
    """
    for name, weight in model.named_parameters():
        if name.endswith("k_proj.bias"):
            weight.requires_grad_(False)
