"""Our model and MarianMT of the same weights, in one process with all cores, or in as many processes."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel

from training.benchmarks.translators.work import Contender, Work
from training.trainer.model import check_has_twin
from vaswani import VaswaniForConditionalGeneration
from vaswani.models.allowed_tokens_vaswani import AllowedTokens
from vaswani.models.int8_vaswani import Int8IsMissing
from vaswani.models.modeling_vaswani import sinusoids
from vaswani.workers import run_tasks


CUT = "ours, shortlist"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Models:
    """Contenders that are models of transformers.

    Parameters
    ----------
    ours : VaswaniForConditionalGeneration
    marian : MarianMTModel
        Of the same weights.
    work : Work
    beams : int
        Hypotheses of the beam search; all search greedily too.
    device : str
    shortlist : sequence of int
        The tokens that those consider which do not consider all.
    cores : int
        Where there are several, and no GPU, as many worker processes are among the contenders.
    """

    def __init__(
        self, ours: Any, marian: Any, work: Work, beams: int, device: str, shortlist: Sequence[int], cores: int
    ):
        self.work, self.on_gpu, self.beams = work, device == "cuda", beams
        self.setting = "GPU" if self.on_gpu else f"{cores} threads" if cores > 1 else "1 thread"
        self.tasks: dict[tuple[str, str, int], Callable[[int], None]] = {}
        for precision, dtype in DTYPES.items():
            mine = copy_of(ours, dtype, device)
            self._add("ours", precision, mine)  # beam search with the paper's alpha, which its config has
        self._add("MarianMT", "bf16", copy_of(marian, torch.bfloat16, device))
        self._add_beam("ours, stock beam", "bf16", beams, mine, length_penalty_alpha=None)
        if not self.on_gpu:
            self._add_reduced(copy_of(ours, torch.float32, device), mine, shortlist)
        self.workers = 1 if self.on_gpu else cores

    def _add(self, name: str, precision: str, model: Any, **settings: Any) -> None:
        for beams in (1, self.beams):
            self._add_beam(name, precision, beams, model, **settings)

    def _add_beam(self, name: str, precision: str, beams: int, model: Any, **settings: Any) -> None:
        self.tasks[name, precision, beams] = partial(self.work.generate, model, num_beams=beams, **settings)

    def _add_reduced(self, mine: Any, in_bf16: Any, shortlist: Sequence[int]) -> None:
        """Add our model in int8, and in int8 with a part of the vocabulary; in bfloat16 where int8 is not possible."""
        precision, model = "int8", mine
        try:
            self._add("ours", "int8", mine.quantize())
        except Int8IsMissing as error:
            print(f"ours in int8 is left out: {error}", file=sys.stderr)
            precision, model = "bf16", in_bf16
        self._add(CUT, precision, model, logits_processor=[AllowedTokens(shortlist)])

    def contenders(self) -> list[Contender]:
        """Return all.

        Those in float32, and transformers' own beam search of our model, are in one process only, and those with a
        part of the vocabulary in several, where there are several.
        """
        entered = []
        for key in self.tasks:
            name, precision, beams = key
            is_cut = name == CUT
            if self.workers == 1 or not is_cut:
                entered.append(Contender(name, precision, self.setting, beams, partial(self._one_by_one, key), is_cut))
            if self.workers > 1 and precision != "fp32" and name != "ours, stock beam":
                setting = f"{self.workers} workers"
                side_by_side = partial(self._side_by_side, key)
                entered.append(Contender(name, precision, setting, beams, side_by_side, is_cut))
        return entered

    def _one_by_one(self, key: tuple[str, str, int]) -> None:
        for number in range(len(self.work.batches)):
            self.tasks[key](number)
        if self.on_gpu:
            torch.cuda.synchronize()

    def _side_by_side(self, key: tuple[str, str, int]) -> None:
        """Translate as `vaswani translate` does: in processes that are forked for these batches."""
        for _ in run_tasks(self.tasks[key], len(self.work.batches), self.workers):
            pass


def copy_of(model: Any, dtype: torch.dtype, device: str) -> Any:
    """Return the model in another precision."""
    copied = type(model)(model.config).eval()
    copied.load_state_dict(model.state_dict())
    return copied.to(dtype).to(device)


def marian_like(ours: VaswaniForConditionalGeneration) -> MarianMTModel:
    """Return transformers' MarianMT of the same weights.

    Raises
    ------
    UserError
        If our self-attention is restricted.
    """
    check_has_twin(ours.config)
    names = ["vocab_size", "d_model", "dropout", "pad_token_id", "eos_token_id", "decoder_start_token_id"]
    names += [
        f"{stack}_{part}" for stack in ("encoder", "decoder") for part in ("layers", "attention_heads", "ffn_dim")
    ]
    config = MarianConfig(
        **{name: getattr(ours.config, name) for name in names},
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        forced_eos_token_id=None,
    )
    marian = MarianMTModel(config).eval()
    marian.load_state_dict(ours.state_dict(), strict=False)
    with torch.no_grad():
        for stack in (marian.model.encoder, marian.model.decoder):
            table = stack.embed_positions.weight
            table.copy_(sinusoids(torch.arange(len(table)), table.shape[1]))
    return marian
