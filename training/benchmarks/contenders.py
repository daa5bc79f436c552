"""One turn of one contender of ``benchmark.py train``, in a process of its own: MarianMT, or our loader alone.

Its argument is a `records.Turn` as JSON. It prints, as its last line, JSON with the contender's `rate` and, on a GPU,
its `peak_bytes`; on a CPU, the process that started it measures these.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, MarianMTModel, Seq2SeqTrainer, Seq2SeqTrainingArguments

from training.benchmarks.records import Turn
from training.benchmarks.translators.peak import fastest
from training.data.batch_plan import Batch
from training.data.loader import load_updates, plan_updates
from training.data.preparation import lengths, prepare
from training.machine import usable_cores
from training.recipe import parse_settings
from training.trainer.model import load_config
from vaswani.errors import UserError
from vaswani.interop.marian import marian_config


class Meter:
    """Counts the target tokens of a turn, except for those of its warm-up, and says when the turn is over."""

    def __init__(self, turn: Turn):
        self.turn = turn
        self.updates = 0
        self.pending: torch.Tensor | int = 0  # target tokens that are not counted yet
        self.is_warm = False
        self.rate = 0.0
        self.restart()

    def restart(self) -> None:
        """Count anew from now, when Python has collected what the imports left: that takes longer than loading."""
        gc.collect()
        self.started, self.tokens = time.perf_counter(), 0

    def is_over(self, labels: torch.Tensor) -> bool:
        """Count an update's `labels`; return whether that was the last one."""
        self.updates += 1
        self.pending = self.pending + (labels != -100).sum()
        if self.turn.device == "cuda" and self.updates % 10:  # to ask the GPU is to wait for it
            return False
        synchronize(self.turn.device)
        tokens, seconds = together(float(self.pending), time.perf_counter() - self.started)
        self.tokens, self.pending = self.tokens + round(tokens), 0
        wanted = self.turn.tokens if self.is_warm else self.turn.tokens / 3
        if self.tokens < wanted and seconds < self.turn.seconds:
            return False
        if self.is_warm:
            self.rate = self.tokens / seconds
            return True
        self.is_warm = True
        self.restart()
        return False


def together(tokens: float, seconds: float) -> tuple[float, float]:
    """Return the tokens of all processes, and the mean of their seconds: so all of them decide alike."""
    if not distributed.is_initialized():
        return tokens, seconds
    sums = torch.tensor([tokens, seconds], dtype=torch.float64)
    distributed.all_reduce(sums)
    return float(sums[0]), float(sums[1]) / distributed.get_world_size()


def multiply(turn: Turn) -> float:
    """Return the best FLOP/s of a large matrix product."""
    size = 8192 if turn.device == "cuda" else 2048
    dtype = torch.bfloat16 if turn.precision == "bf16" else torch.float32
    left = torch.randn(size, size, device=turn.device).to(dtype)
    right = torch.randn(size, size, device=turn.device).to(dtype)

    def product() -> None:
        torch.matmul(left, right)
        synchronize(turn.device)

    synchronize(turn.device)
    return 2 * size**3 / fastest(product)


def synchronize(device: str) -> None:
    """Wait until the GPU has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def load(turn: Turn) -> float:
    """Return the rate at which our batches are read and laid out, with no model to train."""
    return rate_of(turn, our_batches(turn), lambda batch: batch.labels)


def train_as_the_example_does(turn: Turn) -> float:
    """Train as transformers' run_translation_no_trainer.py does: random order, fixed batch size, AdamW, float32."""
    model = marian(turn)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    rows, collator = rows_and_collator(turn, model)
    loader = DataLoader(rows, turn.sentences, shuffle=True, collate_fn=collator)

    def update(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return batch["labels"]

    return rate_of(turn, endlessly(loader), update)


def endlessly(loader: DataLoader) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches, epoch after epoch, each in a random order of its own."""
    while True:
        yield from loader


def train_with_the_trainer(turn: Turn) -> float:
    """Train with transformers' Seq2SeqTrainer: fixed batch size, neighbors of similar length, its own optimizer."""

    class MeteredTrainer(Seq2SeqTrainer):
        def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
            loss = super().training_step(model, inputs, *args)
            if meter.is_over(inputs["labels"]):
                self.control.should_training_stop = True
            return loss

    meter, model = Meter(turn), marian(turn)
    rows, collator = rows_and_collator(turn, model)
    rows = rows.add_column("length", list(map(len, rows["input_ids"])))
    arguments = Seq2SeqTrainingArguments(
        output_dir=turn.folder,
        per_device_train_batch_size=turn.sentences,
        max_steps=1_000_000,
        bf16=True,
        use_cpu=turn.device == "cpu",
        dataloader_num_workers=8 if turn.device == "cuda" else 2,
        train_sampling_strategy="group_by_length",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    MeteredTrainer(model, arguments, train_dataset=rows, data_collator=collator).train()
    return meter.rate


def train_on_our_batches(turn: Turn) -> float:
    """Train on the batches of our own loop, with its optimizer and its precision."""
    model: torch.nn.Module = marian(turn)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    if turn.processes > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)

    def update(batch: Batch) -> torch.Tensor:
        input_ids, attention_mask, labels = (tensor.to(turn.device, non_blocking=True) for tensor in batch)
        with torch.autocast(turn.device, torch.bfloat16, enabled=turn.precision == "bf16"):
            loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return labels

    return rate_of(turn, our_batches(turn), update)


def rate_of(turn: Turn, batches: Iterable[Any], update: Callable[[Any], torch.Tensor]) -> float:
    """Return target tokens a second of `update`, which returns the labels of its batch."""
    meter = Meter(turn)
    for batch in batches:
        if meter.is_over(update(batch)):
            break
    return meter.rate


def our_batches(turn: Turn) -> Iterator[Batch]:
    """Yield what our training loop reads, as it reads it."""
    settings = parse_settings(turn.flags)
    rank = distributed.get_rank() if turn.processes > 1 else 0
    if rank > 0:
        distributed.barrier()  # until the first process has written what this one finds in the cache
    prepared = prepare(settings.data, settings.model, settings.run.grammar_folder)
    if turn.processes > 1 and rank == 0:
        distributed.barrier()
    rows = prepared.encoded["train"]
    updates = plan_updates(lengths(rows), settings.optimization, rank, turn.processes)
    workers = 2 if turn.device == "cuda" else 0
    for update in load_updates(updates, rows, prepared.tokenizer.pad_token_id, workers):
        for batch in update.batches:
            assert isinstance(batch, Batch)
            yield batch


def rows_and_collator(turn: Turn, model: MarianMTModel) -> tuple[Any, DataCollatorForSeq2Seq]:
    """Return the same pairs as transformers' examples read and pad them."""
    settings = parse_settings(turn.flags)
    prepared = prepare(settings.data, settings.model, settings.run.grammar_folder)
    rows = prepared.encoded["train"].select_columns(["input_ids", "labels"])
    return rows, DataCollatorForSeq2Seq(prepared.tokenizer, model=model, label_pad_token_id=-100)


def marian(turn: Turn) -> MarianMTModel:
    """Return a fresh MarianMT of our architecture."""
    config = marian_config(load_config(parse_settings(turn.flags).model.config_name))
    torch.manual_seed(2017)
    model = MarianMTModel._from_config(config, attn_implementation=turn.attention)
    return model.train().to(turn.device)


CONTENDERS = {
    "gemm": multiply,
    "loader": load,
    "example": train_as_the_example_does,
    "trainer": train_with_the_trainer,
    "batched": train_on_our_batches,
}


def main(turn: Turn) -> None:
    """Take a turn, and print what it measured."""
    if turn.device == "cpu":
        torch.set_num_threads(max(1, usable_cores() // turn.processes))
    torch.backends.cuda.enable_cudnn_sdp(False)  # as run.py does: MarianMT, too, is faster without it
    if turn.processes > 1:
        distributed.init_process_group("gloo")
    result = {"rate": CONTENDERS[turn.contender](turn)}
    if turn.device == "cuda":
        result["peak_bytes"] = torch.cuda.max_memory_allocated()
    if turn.processes == 1 or distributed.get_rank() == 0:
        print(json.dumps(result), flush=True)
    if turn.processes > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    try:
        main(Turn(**json.loads(sys.argv[1])))
    except UserError as error:
        sys.exit(f"error: {error}")
