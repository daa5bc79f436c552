"""How much memory translating takes, estimated before it starts, and what to say where there is less.

The greatest batches decide: their caches of keys and values, and their logits, outweigh all else. Axis letters: see
`models/modeling_vaswani.py`.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .models.decoding_vaswani import PAPERS_DECODING, DecodingSettings, wishes
from .models.encoding_vaswani import MAX_POSITIONS, attention_dtype
from .models.generation_vaswani import max_positions, output_limit
from .models.int8_vaswani import is_quantized
from .translation import keeps_steps, make_batches


GIGA = 1e9
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")

# Fitted to the peaks of whole processes on a CPU under Linux, which `python training/benchmark.py memory` measures
# again. The interpreter with its libraries and a tokenizer:
FLOOR_BYTES = 385e6
# Weights, with those that are kept fused, or in bfloat16 and int8 rearranged:
COPIES_OF_WEIGHTS, COPIES_OF_PACKED_WEIGHTS = 1.25, 2.1
# oneDNN, which multiplies bfloat16 and int8, makes a kernel for each matrix and number of rows, and keeps the last.
# The first batches make some 100 each; twice as many are counted here, for those of the text after the first window.
KERNEL_BYTES, KERNELS_OF_BATCH, MAX_KERNELS = 0.6e6, 200, 1024
MAX_KERNELS_SETTING = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
# The cache of keys and values begins with 16 positions, with many beams with fewer, of 64 slots in all. Then it grows
# by parts, beside the smaller one that it is copied from.
FIRST_POSITIONS, FIRST_SLOTS, COPIES_OF_CACHE = 16, 64, 1.8
# An ensemble's members are joined in float32: for each type the mean so far, a member's log-probability, the new mean.
JOINING_BYTES = 3 * 4
# What a batch needs, with what the allocator holds between its parts:
COPIES_OF_BATCH = 1.15


@dataclass(frozen=True)
class Batch:
    """What a batch asks of a model.

    Parameters
    ----------
    sentences : int
        B.
    source_length : int
        S, of the longest source.
    output_length : int
        T, most tokens of a translation.
    num_beams : int
        K.
    processes_logits : bool
        Whether logits are changed by more than the settings of a search, as for parses.
    keeps_scores : bool
        Whether the logits of all steps are kept, for scores.
    """

    sentences: int
    source_length: int
    output_length: int
    num_beams: int = 1
    processes_logits: bool = False
    keeps_scores: bool = False


def predict_peak(
    config: Any,
    batches: Iterable[Batch],
    weight_bytes: float,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    workers: int = 1,
) -> float:
    """Return the most bytes that translating takes on a CPU, without `kernel_bytes`.

    Parameters
    ----------
    config : VaswaniConfig
    batches : iterable of Batch
    weight_bytes : float
        Of all weights.
    dtype : dtype
        Of the weights; beside int8, all else but keys and values is in float32.
    cache_dtype : dtype
        Of keys and values: that of `attention_dtype`.
    workers : int, default=1
        Processes that share the weights and translate a batch each. At worst, these are the greatest batches.
    """
    itemsizes = itemsize_beside(dtype), cache_dtype.itemsize
    each = [batch_bytes(config, batch, *itemsizes) for batch in batches]
    return resident_bytes(weight_bytes, dtype) + sum(nlargest(workers, each))


def kernel_bytes(batches: int, dtype: torch.dtype) -> float:
    """Return the bytes of the oneDNN kernels that a process keeps after this many batches of different shapes."""
    if dtype is torch.float32:  # which another library multiplies
        return 0.0
    return KERNEL_BYTES * min(KERNELS_OF_BATCH * batches, max_kernels())


def max_kernels() -> int:
    """Return how many kernels oneDNN keeps."""
    setting = os.environ.get(MAX_KERNELS_SETTING, "")
    return int(setting) if setting.isdecimal() else MAX_KERNELS


def itemsize_beside(dtype: torch.dtype) -> int:
    """Return the bytes of a number that is computed with weights of this type."""
    return 4 if dtype is torch.int8 else dtype.itemsize


def resident_bytes(weight_bytes: float, dtype: torch.dtype) -> float:
    """Return what is held whatever the batch."""
    copies = COPIES_OF_WEIGHTS if dtype is torch.float32 else COPIES_OF_PACKED_WEIGHTS
    return FLOOR_BYTES + copies * weight_bytes


def batch_bytes(config: Any, batch: Batch, itemsize: int, cache_itemsize: int) -> float:
    """Return what a batch adds to the weights: in the encoder, or later in the search, whichever is more."""
    source, rows = batch.sentences * batch.source_length, batch.sentences * batch.num_beams
    heads = config.decoder_attention_heads
    head_dim = config.head_dim or config.d_model // heads
    of_position = config.decoder_layers * heads * (head_dim + (config.v_head_dim or head_dim))  # keys and values
    most_seen = batch.output_length if config.attention_restriction is None else config.attention_restriction
    first = max(1, min(FIRST_POSITIONS, FIRST_SLOTS // batch.num_beams))
    positions = first + COPIES_OF_CACHE * max(0, min(batch.output_length, most_seen) - first)
    encoding = source * (2 * config.encoder_ffn_dim + 4 * config.d_model) * itemsize
    if config.attention_restriction is None:  # of some sentences at a time, each pair of tokens in every head
        together = max(1, min(batch.sentences, MAX_POSITIONS // batch.source_length))
        pairs = together * config.encoder_attention_heads * batch.source_length**2
        encoding += 2 * pairs * cache_itemsize  # a product, and its softmax
    states = source * (1 + batch.num_beams) * config.d_model * itemsize  # transformers repeats them for each beam
    caches = (source + rows * positions) * of_position * cache_itemsize
    decoding = states + caches + rows * config.vocab_size * logit_bytes(batch, itemsize)
    return COPIES_OF_BATCH * max(encoding, decoding)


def logit_bytes(batch: Batch, itemsize: int) -> int:
    """Return the bytes that are held for a hypothesis and a type of the vocabulary."""
    kept = 4 * batch.output_length if batch.keeps_scores else 0
    if batch.processes_logits or batch.keeps_scores:
        return kept + itemsize + 3 * 4  # in float32: a copy, its log-probabilities, and what became of them
    return itemsize * (1 if batch.num_beams == 1 else 2)  # with beams probabilities, too


def likelihood_bytes(config: Any, tokens: int, itemsize: int) -> float:
    """Return what a batch of references takes while they are scored: logits, also in float32, and their logarithms."""
    return tokens * config.vocab_size * (itemsize + (0 if itemsize == 4 else 4) + 4)


@dataclass(frozen=True)
class Forecast:
    """What translating with a loaded model will take.

    Parameters
    ----------
    model : PreTrainedModel
        Or an `Ensemble`, of which each member is counted.
    arguments : mapping
        Those of ``generate()``.
    workers : int, default=1
        Processes that share the weights and translate a batch each.
    with_scores : bool, default=False
        Whether translations are scored.
    is_constrained : bool, default=False
        Whether the search may write only what a logits processor allows, as for parses.
    with_likelihood : bool, default=False
        Whether references are scored too, in batches of as many tokens.
    """

    model: PreTrainedModel
    arguments: Mapping[str, Any]
    workers: int = 1
    with_scores: bool = False
    is_constrained: bool = False
    with_likelihood: bool = False

    def shortage(
        self, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_batch_tokens: int
    ) -> str | None:
        """Say in a sentence that there is too little memory to translate these sentences; None where there is enough.

        None, too, where nothing can be estimated: on a GPU, for a model that is no Transformer of ours, and where the
        system does not tell what is available, as only Linux does.
        """
        available = available_bytes()
        is_known = self.model.config.model_type == "vaswani" and self.model.device.type == "cpu"
        given = [sentence for sentence in sentences if sentence.strip()]
        if available is None or not is_known or not given:
            return None
        positions = max_positions(self.model.config) or sys.maxsize
        lengths = [min(len(ids), positions) for ids in tokenizer(given, verbose=False).input_ids]
        need = self.peak(lengths, max_batch_tokens)
        if need <= available:
            return None
        ways = []
        if self.kernel_bytes(1):  # the cheapest
            ways.append(f"{MAX_KERNELS_SETTING}={max_kernels()}")
        fitting = max_batch_tokens
        while fitting > max(lengths) and self.peak(lengths, fitting) > available:
            fitting //= 2
        least = self.peak(lengths, fitting)
        if least < need:
            ways.append(f"--max_batch_tokens={max_batch_tokens} (with {fitting} about {_gigabytes(least)})")
        greedy = replace(self, arguments={**self.arguments, "num_beams": 1})
        if greedy.peak(lengths, max_batch_tokens) < need:
            ways.append(f"--num_beams={self.num_beams}")
        lower = f": lower {' or '.join(ways)}" if ways else f": the longest line has {max(lengths):,} tokens"
        return f"this may need {_gigabytes(need)} of memory, but {_gigabytes(available)} are available{lower}"

    @property
    def num_beams(self) -> int:
        """K."""
        return self.arguments.get("num_beams") or self.model.generation_config.num_beams or 1

    @property
    def dtype(self) -> torch.dtype:
        """Of most weights."""
        return torch.int8 if is_quantized(self.model) else self.model.dtype

    def peak(self, lengths: Sequence[int], max_batch_tokens: int) -> float:
        """Return the most bytes that translating sources of these lengths takes."""
        batches = list(self._batches(lengths, max_batch_tokens))
        tokens = max(min(max_batch_tokens, sum(lengths)), max(lengths)) if self.with_likelihood else 0
        members = self.members()
        peak = FLOOR_BYTES + sum(member._peak_alone(batches, tokens) - FLOOR_BYTES for member in members)
        if len(members) > 1:
            rows = nlargest(self.workers, (batch.sentences * batch.num_beams for batch in batches))
            peak += COPIES_OF_BATCH * JOINING_BYTES * sum(rows) * self.model.config.vocab_size
        return peak + min(self.workers, len(batches)) * self.kernel_bytes(len(batches))

    def members(self) -> list["Forecast"]:
        """Return one for each model: those of an ensemble are all at work with the same batch."""
        return [replace(self, model=model) for model in getattr(self.model, "members", [self.model])]

    def kernel_bytes(self, batches: int) -> float:
        """Return those of a process, whose models share them."""
        return max(kernel_bytes(batches, member.dtype) for member in self.members())

    def _peak_alone(self, batches: Iterable[Batch], scored_tokens: int) -> float:
        """Return what one model takes for these batches, and for so many tokens of references at a time."""
        config, weight_bytes = self.model.config, self.model.get_memory_footprint()
        peak = predict_peak(config, batches, weight_bytes, self.dtype, attention_dtype(self.model), self.workers)
        scoring = likelihood_bytes(config, scored_tokens, itemsize_beside(self.dtype))
        return max(peak, resident_bytes(weight_bytes, self.dtype) + scoring)

    def _batches(self, lengths: Sequence[int], max_batch_tokens: int) -> Iterator[Batch]:
        """Yield the shapes of the batches that `translate` makes of such sources."""
        config = self.model.config
        keeps_scores = self.with_scores and keeps_steps(self.model, self.arguments)
        bytes_per_token = 4 * config.vocab_size * self.num_beams if keeps_scores else 0
        for batch in make_batches(dict(enumerate(lengths)), max_batch_tokens, bytes_per_token, self.workers):
            source_length = lengths[batch[0]]
            yield Batch(
                sentences=len(batch),
                source_length=source_length,
                output_length=self._output_length(source_length),
                num_beams=self.num_beams,
                processes_logits=self.is_constrained,
                keeps_scores=keeps_scores,
            )

    def _output_length(self, source_length: int) -> int:
        settings = DecodingSettings.read(self.arguments, None, self.model.generation_config)
        extra, least = settings.extra_target_tokens, max(settings.min_new_tokens, settings.min_length - 1)
        if extra is None:  # something else limits it
            levels = wishes(self.model.generation_config), self.arguments  # the second counts first
            limits = {name: value for level in levels for name, value in level.items() if value is not None}
            if "max_new_tokens" in limits:
                return limits["max_new_tokens"]
            if "max_length" in limits:  # the decoder's start included
                return limits["max_length"] - 1
            extra = PAPERS_DECODING["extra_target_tokens"]
        return output_limit(self.model.config, source_length, extra, least=least)


def available_bytes() -> int | None:
    """Return the bytes that this process may hold in all, what it holds already included; None if nobody tells."""
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
        fields = {name: value.split()[0] for name, value in (line.split(":") for line in lines)}
        held = int((PROC / "self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return held + max(0, min([int(fields["MemAvailable"]) * 1024, *free_in_cgroups()]))
    except (OSError, KeyError, ValueError):
        return None


def free_in_cgroups() -> Iterator[int]:
    """Yield what the limits of this process's control groups leave, of either version: containers have such limits."""
    for line in (PROC / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = CGROUPS / "memory" if controllers else CGROUPS
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        place = root / path.lstrip("/")
        for folder in (place, *place.parents):
            if folder.is_relative_to(root) and (folder / names[0]).exists():
                limit, used = ((folder / name).read_text().strip() for name in names)
                if limit != "max":
                    yield int(limit) - int(used) + reclaimable_bytes(folder)


def reclaimable_bytes(folder: Path) -> int:
    """Return what a control group holds of files that it would give up for something else."""
    lines = (folder / "memory.stat").read_text().splitlines()
    return int(next((line.split()[1] for line in lines if line.startswith("inactive_file ")), 0))


def _gigabytes(count: float) -> str:
    return f"{count / GIGA:.2g} GB" if count < 10 * GIGA else f"{count / GIGA:,.0f} GB"
