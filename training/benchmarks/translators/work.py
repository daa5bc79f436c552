"""The work of ``benchmark.py generate``, the same for everybody, and who does it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.models.packing_vaswani import multiplies_bfloat16


@dataclass(frozen=True)
class Work:
    """Sentences to translate, sorted by length as all contenders sort them, in batches of as many.

    Parameters
    ----------
    batches : list of (Tensor of shape (B, S), Tensor of shape (B, S))
        Ids of the source tokens and their mask.
    new_tokens : int
        Tokens of every translation, so that a token is the same work for all.
    """

    batches: list[tuple[torch.Tensor, torch.Tensor]]
    new_tokens: int

    @classmethod
    def of(cls, config: VaswaniConfig, batches: int, sentences: int, new_tokens: int, device: str = "cpu") -> "Work":
        """Make up `batches` of as many `sentences`, of 10 to 40 random tokens."""
        lengths = torch.randint(10, 41, (batches * sentences,)).sort(descending=True).values
        return cls([cls._batch(part, config.vocab_size, device) for part in lengths.split(sentences)], new_tokens)

    @staticmethod
    def _batch(lengths: torch.Tensor, vocab_size: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        ids = torch.randint(1, vocab_size - 1, mask.shape).masked_fill(~mask, vocab_size - 1)
        return ids.to(device), mask.long().to(device)

    @property
    def tokens(self) -> int:
        """Tokens of all translations."""
        return sum(len(ids) for ids, _ in self.batches) * self.new_tokens

    @property
    def source_tokens(self) -> int:
        """Tokens of all sentences."""
        return sum(int(mask.sum()) for _, mask in self.batches)

    def generate(self, model: Any, number: int, **settings: Any) -> None:
        """Let a model's `generate` translate a batch."""
        ids, mask = self.batches[number]
        length = {"min_new_tokens": self.new_tokens, "max_new_tokens": self.new_tokens}
        settings |= {"suppress_tokens": [model.config.pad_token_id], "do_sample": False}
        output = model.generate(input_ids=ids, attention_mask=mask, **length, **settings)
        self.check(output[:, 1:], len(ids))

    def check(self, translations: Sequence[Sequence[Any]], sentences: int) -> None:
        """Make sure that the work was done: every sentence, to its full length."""
        assert len(translations) == sentences
        assert all(len(translation) == self.new_tokens for translation in translations)


@dataclass(frozen=True)
class Setup:
    """What all contenders have in common.

    Parameters
    ----------
    config : VaswaniConfig
        Of the model, whose weights are random, the same for all.
    work : Work
    beams : int
        Hypotheses of the beam search; all search greedily too.
    device : str
        "cpu" or "cuda".
    cores : int
        Of a CPU; all are used.
    shortlist : sequence of int
        The tokens that those consider which do not consider all.
    """

    config: VaswaniConfig
    work: Work
    beams: int
    device: str
    cores: int
    shortlist: Sequence[int]

    def model(self) -> VaswaniForConditionalGeneration:
        """Make the model."""
        torch.manual_seed(2017)
        return VaswaniForConditionalGeneration(self.config).eval()

    @property
    def fast_type(self) -> tuple[torch.dtype, str]:
        """Return the type of states that is the fastest here, and its name in the table."""
        is_half = self.device == "cuda" or multiplies_bfloat16()
        return (torch.bfloat16, "bf16") if is_half else (torch.float32, "fp32")

    @property
    def threads(self) -> str:
        """Name the setting in which all cores do one batch."""
        if self.device == "cuda":
            return "GPU"
        return f"{self.cores} threads" if self.cores > 1 else "1 thread"

    @property
    def workers(self) -> str | None:
        """Name the setting in which each core does a batch of its own; None where there is but one, or a GPU."""
        return f"{self.cores} workers" if self.cores > 1 and self.device == "cpu" else None


@dataclass(frozen=True)
class Contender:
    """A model or library that does the work once.

    Parameters
    ----------
    name : str
    precision : str
        "fp32", "bf16" or "int8".
    setting : str
        How it uses the cores: "2 threads" for one batch, or as many "workers", each with a batch and a core.
    beams : int
        Hypotheses of the beam search, 1 for greedy search.
    translate : callable
        Does the work.
    is_cut : bool
        Whether it considers a part of the vocabulary only.
    """

    name: str
    precision: str
    setting: str
    beams: int
    translate: Callable[[], None]
    is_cut: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is this project's own model with its own search."""
        return self.name.startswith("ours") and self.name != "ours, stock beam"


def gigaflops_per_token(model: nn.Module, work: Work, beams: int) -> float:
    """Return the operations for a token of a translation, in 10^9, those of matrices of weights alone.

    Whatever reads the source alone, the encoder and the keys and values of encoder-decoder attention, is done once for
    each token of the source; all else for each token of each hypothesis.
    """
    of_source = of_target = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            if ".encoder." in name or name.endswith(("encoder_attn.k_proj", "encoder_attn.v_proj")):
                of_source += module.weight.numel()
            else:
                of_target += module.weight.numel()
    return 2e-9 * (of_source * work.source_tokens / work.tokens + of_target * beams)
