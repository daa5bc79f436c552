"""Train the Transformer as section 5 of the paper says, evaluate it, and publish it as a model folder.

accelerate launch training/run.py
accelerate launch training/run.py training/recipes/multi30k-en-de.toml --output_dir runs/mine --max_steps 1000
accelerate launch training/run.py --help
"""

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from training.batching import Batch, collate, plan_epoch, share
from training.building import build_model, load_config, load_tokenizer
from training.checkpoints import average_checkpoints, list_checkpoints, save_checkpoint
from training.data import describe, encode, keep_usable, load_text
from training.evaluation import evaluate
from training.logbook import Logbook, claim_output_dir, usable_cores
from training.loss import label_smoothed_sums
from training.publish import publish, push
from training.schedule import learning_rate
from training.settings import TrainingSettings, UserError, parse_settings
from vaswani import VaswaniForConditionalGeneration


def main(arguments: list[str]) -> None:
    """Go the whole way: text, ids, batches, loss, checkpoints, published folder."""
    settings = parse_settings(arguments)
    directory = claim_output_dir(settings)
    config = load_config(settings)
    accelerator = start_accelerator(settings)
    set_seed(settings.seed)

    # Section 5.1: data and vocabulary. The main process prepares them, the others read what it cached.
    with accelerator.main_process_first():
        text = load_text(settings)
        tokenizer = load_tokenizer(settings, text["train"])
        encoded, counts = DatasetDict(), {}
        for split, rows in text.items():
            encoded[split], counts[split] = keep_usable(encode(rows, tokenizer, settings, split))
    model = build_model(config, settings, tokenizer)

    logbook = Logbook(directory, accelerator, settings)
    for split, count in counts.items():
        logbook.say(f"{split}: {describe(count)}")
    logbook.say(
        f"{model.num_parameters():,} parameters, {accelerator.num_processes} process(es) on "
        f"{accelerator.device.type}, precision {accelerator.mixed_precision}"
    )
    run = Run(accelerator, settings, model, tokenizer, text, encoded, logbook)
    run.train()

    # Section 6.1: the last checkpoints are averaged, and judged on text by which nothing was chosen.
    run.average()
    results = [run.judge(split, settings.max_steps) for split in text if split != "train"]
    logbook.close()
    if accelerator.is_main_process:
        folder = publish(model, tokenizer, settings, counts["train"], results[-1], directory)
        if settings.push_to_hub:
            print(f"Sent to {push(folder, settings)}")
        print(how_to_use(folder, text[results[-1]["split"]][0]["source"]))


def start_accelerator(settings: TrainingSettings) -> Accelerator:
    """Set up devices, processes and trackers, with all cores at work where there is no accelerator."""
    log_with = None if settings.report_to == "none" else settings.report_to
    try:
        accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),  # several processes find each other only if told so
            mixed_precision=settings.mixed_precision,
            log_with=log_with,
            project_dir=settings.output_dir,
        )
    except ValueError as error:
        raise UserError(f"report_to={log_with!r}, mixed_precision={settings.mixed_precision!r}: {error}") from error
    if accelerator.device.type == "cpu":
        # `accelerate launch` sets one thread unless told otherwise.
        torch.set_num_threads(max(1, usable_cores() // accelerator.num_processes))
    config = {name: value for name, value in vars(settings).items() if isinstance(value, str | int | float)}
    accelerator.init_trackers("vaswani", config=config)
    return accelerator


@dataclass
class Run:
    """A run under way: the model that learns, what it learns from, and where its progress goes."""

    accelerator: Accelerator
    settings: TrainingSettings
    model: VaswaniForConditionalGeneration
    tokenizer: PreTrainedTokenizerBase
    text: DatasetDict
    encoded: DatasetDict
    logbook: Logbook

    def train(self) -> None:
        """Minimize label-smoothed cross-entropy with Adam (sections 5.3 and 5.4), evaluating and saving on the way."""
        settings = self.settings
        optimizer = torch.optim.Adam(
            self.model.parameters(),
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_epsilon,
            fused=True,
        )
        model, optimizer = self.accelerator.prepare(self.model, optimizer)
        model.train()
        sums, started = np.zeros(3), time.perf_counter()
        for step, (epoch, batch) in enumerate(itertools.islice(self.batches(), settings.max_steps), start=1):
            rate = settings.learning_rate_factor * learning_rate(
                step, self.model.config.d_model, settings.warmup_steps
            )
            sums += self.update(model, optimizer, batch, rate)
            self.logbook.progress.update()
            if step % settings.logging_steps == 0 or step == settings.max_steps:
                self.logbook.log(training_row(step, epoch, rate, sums, time.perf_counter() - started))
                sums, started = np.zeros(3), time.perf_counter()
            paused = time.perf_counter()
            if settings.save_steps and step % settings.save_steps == 0 and self.accelerator.is_main_process:
                save_checkpoint(self.model, self.checkpoints, step, settings.save_total_limit)
            if settings.eval_steps and step % settings.eval_steps == 0 and step < settings.max_steps:
                self.judge("validation", step)
            started += time.perf_counter() - paused

    def average(self) -> None:
        """Replace the weights by the average of the last checkpoints (section 6.1), where the settings say so."""
        count = self.settings.average_checkpoints
        self.accelerator.wait_for_everyone()
        if count > 1:
            averages = average_checkpoints(list_checkpoints(self.checkpoints)[-count:])
            self.model.load_state_dict(averages, strict=False)  # a file holds shared weights once

    @property
    def checkpoints(self) -> Path:
        return Path(self.settings.output_dir) / "checkpoints"

    def batches(self) -> Iterator[tuple[float, Batch]]:
        """Yield this process's share of one update after another, for ever, with the epochs done after it."""
        rows = self.encoded["train"]
        lengths = [np.asarray(rows.with_format("numpy")[f"{side}_length"][:]) for side in ("source", "target")]
        for epoch in itertools.count():
            plan = plan_epoch(*lengths, self.settings.max_tokens_per_batch, self.settings.seed, epoch)
            for position, indices in enumerate(plan, start=1):
                indices = share(indices, self.accelerator.process_index, self.accelerator.num_processes)
                yield epoch + position / len(plan), self.load(rows, indices)

    def load(self, rows: Dataset, indices: np.ndarray) -> Batch:
        """Read and pad the pairs of a batch; with none, one that teaches nothing, so that all processes take part."""
        pad_token_id = self.tokenizer.pad_token_id
        if not len(indices):
            return collate([[pad_token_id]], [[]], pad_token_id)
        pairs = rows[indices]
        return collate(pairs["input_ids"], pairs["labels"], pad_token_id)

    def update(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, rate: float
    ) -> np.ndarray:
        """Do one optimizer update, whose loss is the mean over the real target tokens of all processes.

        Returns
        -------
        ndarray of shape (3,)
            Smoothed loss, plain negative log-likelihood and target tokens, summed over all processes.
        """
        accelerator = self.accelerator
        input_ids, attention_mask, labels = (tensor.to(accelerator.device) for tensor in batch)
        decoder_input_ids = self.model.prepare_decoder_input_ids_from_labels(labels)
        logits = model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False).logits
        sums = label_smoothed_sums(logits, labels, self.settings.label_smoothing)
        totals = accelerator.reduce(torch.stack([sums.loss.detach(), sums.nll, sums.tokens.float()]))
        # Data-parallel training averages gradients over the processes, hence their number.
        accelerator.backward(sums.loss * (accelerator.num_processes / totals[2]))
        # The row of <pad> is the zero vector that the decoder starts from, and stays it.
        self.model.model.shared.weight.grad[self.model.config.pad_token_id] = 0
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        return totals.double().cpu().numpy()

    def judge(self, split: str, step: int) -> dict[str, Any]:
        """Evaluate on one split, log it and show a few translations; the main process does it, the others wait."""
        averaged = self.settings.average_checkpoints if step == self.settings.max_steps else 1
        row = {"step": step, "split": split, "averaged_checkpoints": averaged}
        if self.accelerator.is_main_process:
            scores, translations = evaluate(
                self.model, self.tokenizer, self.text[split], self.encoded[split], self.settings.max_tokens_per_batch
            )
            row |= scores
            self.logbook.log(row)
            self.logbook.show(row, self.text[split], translations)
        self.accelerator.wait_for_everyone()
        return row


def training_row(step: int, epoch: float, rate: float, sums: np.ndarray, seconds: float) -> dict[str, float]:
    """Make the row of `metrics.jsonl` for the updates since the last one, from sums over their target tokens."""
    loss, nll, tokens = sums.tolist()
    return {
        "step": step,
        "loss": round(loss / tokens, 5),
        "nll": round(nll / tokens, 5),
        "learning_rate": rate,
        "target_tokens": int(tokens),
        "target_tokens_per_second": round(tokens / seconds, 1),
        "epoch": round(epoch, 4),
    }


def how_to_use(folder: Path, sentence: str) -> str:
    """Say in two lines how to translate with a published folder."""
    return (
        f"Published to {folder}. To translate with it (without this package: pipeline(..., trust_remote_code=True)):\n"
        f"""  import vaswani, transformers; print(transformers.pipeline("translation", "{folder}")({sentence!r}))"""
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
