"""What the Transformer's predecessors have in common: how they decode step by step.

Recurrent and convolutional decoders keep no keys and values of earlier positions but a state of a fixed size. The
searches of `search_vaswani.py` and those of transformers both reach it through a `StateCache`.

Axis letters: see `modeling_vaswani.py`.
"""

from typing import Any

import torch
from transformers import GenerationConfig
from transformers.cache_utils import Cache
from transformers.utils import ModelOutput

from .cache_vaswani import CACHE
from .fusion_vaswani import AS_WRITTEN, Fused
from .generation_vaswani import ModelState
from .search_vaswani import DecoderState
from .translator_vaswani import TranslatorForConditionalGeneration


class StateCache(Cache):
    """What a decoder keeps from one step to the next, a row of each tensor for each of the R hypotheses.

    Attributes
    ----------
    length : int
        Positions so far.
    state : dict of str to Tensor of shape (R, ...)
        What depends on the hypothesis; empty before the first step.
    source : dict of str to Tensor of shape (R, ...)
        What depends on the source alone, so that the hypotheses of a sentence need not exchange it.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.length = 0
        self.state: dict[str, torch.Tensor] = {}
        self.source: dict[str, torch.Tensor] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of positions so far."""
        return self.length

    @property
    def is_compileable(self) -> bool:
        """Whether its tensors keep their places, as those of a static cache do."""
        return False

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let each row continue the hypothesis, of the same sentence, that the (R,) indices name."""
        self.state = {name: tensor[beam_idx.to(tensor.device)] for name, tensor in self.state.items()}

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only the rows that the indices name."""
        self.reorder_cache(indices)
        self.source = {name: tensor[indices.to(tensor.device)] for name, tensor in self.source.items()}

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        for tensors in (self.state, self.source):
            tensors.update({name: tensor.repeat_interleave(repeats, dim=0) for name, tensor in tensors.items()})


def state_cache(past_key_values: Cache | None, use_cache: bool | None) -> StateCache | None:
    """Return the cache from which a decoder continues: the given one, a new one, or none.

    Raises
    ------
    ValueError
        If the given one is of another kind.
    """
    if past_key_values is None:
        return StateCache() if use_cache else None
    if not isinstance(past_key_values, StateCache):
        raise ValueError(
            f"past_key_values is a {type(past_key_values).__name__}, which holds keys and values: this model goes on "
            "from the StateCache that an earlier step returned"
        )
    return past_key_values


def check_right_padded(name: str, attention_mask: torch.Tensor | None) -> None:
    """Refuse a (B, T) mask with padding before a real token, where a state would have to skip it.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    if attention_mask is not None and (attention_mask[:, 1:] > attention_mask[:, :-1]).any():
        raise ValueError(f"{name} has padding before real tokens: this decoder takes it behind them only")


class PredecessorState(ModelState):
    """A `ModelState` that drops the rows of finished sentences: here it is known what is counted by rows.

    Parameters
    ----------
    model, model_kwargs
        As for `ModelState`.
    num_beams : int
        K.
    """

    def __init__(self, model: Any, model_kwargs: dict[str, Any], num_beams: int):
        super().__init__(model, dict(model_kwargs))
        self.num_beams = num_beams

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the (B',) sentences."""
        count = len(self.input_ids)
        rows = torch.arange(count, device=sentences.device).unflatten(0, (-1, self.num_beams))[sentences].flatten()
        self.input_ids = self.input_ids[rows]
        self.model_kwargs = {name: select_rows(value, rows, count) for name, value in self.model_kwargs.items()}


def select_rows(value: Any, rows: torch.Tensor, count: int) -> Any:
    """Return these rows of anything that has `count` rows, and anything else as it is."""
    if isinstance(value, StateCache):
        value.batch_select_indices(rows)
    elif isinstance(value, torch.Tensor) and value.ndim and len(value) == count:
        return value[rows.to(value.device)]
    elif isinstance(value, ModelOutput):
        return type(value)(**{name: select_rows(part, rows, count) for name, part in value.items()})
    elif isinstance(value, tuple):
        return tuple(select_rows(part, rows, count) for part in value)
    return value


class PredecessorForConditionalGeneration(TranslatorForConditionalGeneration):
    """A `TranslatorForConditionalGeneration` whose decoder continues from a `StateCache`."""

    _is_stateful = True  # transformers then refuses assisted generation, which goes back

    def decoder_state(self, num_beams: int, model_kwargs: dict[str, Any], fused: Fused = AS_WRITTEN) -> DecoderState:
        """Return a `PredecessorState`."""
        return PredecessorState(self, model_kwargs, num_beams)

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r} must be left out: this model keeps "
                "no keys and values of earlier positions"
            )
        if generation_config.use_cache and model_kwargs.get(CACHE) is None:
            model_kwargs[CACHE] = StateCache()


__all__ = ["PredecessorForConditionalGeneration", "StateCache", "check_right_padded", "state_cache"]
