"""The cost of a model: its parameters, and the operations (FLOPs) of its training."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from training.trainer.model import on_paper
from vaswani.errors import UserError
from vaswani.models.configuration_vaswani import TranslatorConfig


# Table 2: 8 P100s, "sustained single-precision floating-point capacity" of 9.5 TFLOP/s each (its footnote).
PAPERS_GPUS, PAPERS_FLOPS_PER_GPU = 8, 9.5e12
# About the mean of WMT14's sentences, in tokens of the paper's vocabulary.
LENGTH = 28
_COUNTED: dict[tuple[str, int], float] = {}  # FLOPs, by config and length: a count takes up to a second


def count_parameters(config: TranslatorConfig, vocab_size: int | None = None) -> int:
    """Return the number of parameters, shared ones once.

    Parameters
    ----------
    config : TranslatorConfig
    vocab_size : int, optional
        Rows of the embedding, instead of the config's. The original code had 40,960 for EN-DE, which give the counts
        that Table 3 prints.
    """
    return on_paper(config, vocab_size).num_parameters()


def flops_per_target_token(config: TranslatorConfig, length: int = LENGTH) -> float:
    """Return the operations of the forward and backward pass for one target token and one source token.

    Matrix products are counted, those of attention too, at 2 operations for a multiplication and addition, in a pair
    of sentences of `length` tokens each. Each takes two products of its size backward, for its two factors; of
    recurrent layers that is 0.1% too many, since their first state is constant. Normalization, softmax and dropout are
    not counted.

    Raises
    ------
    UserError
        If self-attention is restricted.
    """
    restriction = getattr(config, "attention_restriction", None)
    if restriction is not None:
        raise UserError(
            f"attention_restriction={restriction} must be none here: the operations of restricted self-attention are "
            "not counted"
        )
    key = config.to_json_string(use_diff=False), length
    if key not in _COUNTED:
        model = on_paper(config)
        model.set_attn_implementation("eager")
        ids = torch.zeros(1, length, dtype=torch.long, device="meta")
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(ids, decoder_input_ids=ids, use_cache=False)
        _COUNTED[key] = 3 * counter.get_total_flops() / length
    return _COUNTED[key]


def papers_training_flops(hours: float) -> float:
    """Return the operations of a training as the paper estimates them: time x GPUs x FLOP/s that each sustains."""
    return hours * 3600 * PAPERS_GPUS * PAPERS_FLOPS_PER_GPU
