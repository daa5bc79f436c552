"""Whether an exported model gives what ours gives: the same logits, the same translations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from sacrebleu.metrics import CHRF
from transformers import PreTrainedTokenizerBase

from vaswani.errors import UserError
from vaswani.models.generation_vaswani import max_positions
from vaswani.models.modeling_vaswani import VaswaniForConditionalGeneration
from vaswani.models.translator_vaswani import shift_tokens_right
from vaswani.translation import translate


Settings = dict[str, Any]

SENTENCES = 100
# In float32. Other orders of summation differ by about 1e-6 for each of a dozen layers.
LARGEST_DIFFERENCE = 1e-4
# Of the greedy translations in float32. The hundredth may hang on two tokens whose logits differ by rounding.
SMALLEST_SHARE = 0.99
MAX_NEW_TOKENS = 100
MAX_LABELS = 30  # whose log-probabilities are compared
BATCH = 20


@dataclass(frozen=True)
class Agreement:
    """How far two models agree on some sentences.

    Attributes
    ----------
    sentences : int
    largest_difference : float
        Of log-probabilities of the tokens of our greedy translations.
    equal : dict of str to int
        Equal translations, by the search.
    chrf : dict of str to float
        chrF of their translations against ours, by the search.
    reference_chrf : dict of str to (float, float), default={}
        chrF of ours and of theirs against references, where there are some.
    exact : tuple of str, default=("greedy",)
        The searches that must give the same in float32.
    """

    sentences: int
    largest_difference: float
    equal: dict[str, int]
    chrf: dict[str, float]
    reference_chrf: dict[str, tuple[float, float]] = field(default_factory=dict)
    exact: tuple[str, ...] = ("greedy",)

    def check(self) -> None:
        """Refuse what is no rounding: in log-probabilities, or in translations of a search that must be exact."""
        if self.largest_difference > LARGEST_DIFFERENCE:
            raise UserError(
                f"the exported model's log-probabilities differ by up to {self.largest_difference:.1e} from ours, but "
                f"must not by more than {LARGEST_DIFFERENCE:g}: nothing was written"
            )
        for search in self.exact:
            if self.equal[search] < SMALLEST_SHARE * self.sentences:
                raise UserError(
                    f"the exported model gives {self.equal[search]} of {self.sentences} translations of search "
                    f"{search!r} as ours does, but must give {SMALLEST_SHARE:.0%} at least: nothing was written"
                )

    def __str__(self) -> str:
        parts = [f"log-probabilities within {self.largest_difference:.0e}"]
        for search, equal in self.equal.items():
            chrf = f"chrF {self.chrf[search]:.1f}"
            if search in self.reference_chrf:
                mine, other = self.reference_chrf[search]
                chrf += f", against the references {other:.2f} where ours has {mine:.2f}"
            parts.append(f"{search}: {equal} of {self.sentences} translations equal ({chrf})")
        return "; ".join(parts)


def made_up_sentences(tokenizer: PreTrainedTokenizerBase, count: int = SENTENCES) -> list[str]:
    """Return sentences of the tokenizer's own words at random, of 5 to 30 tokens, always the same."""
    generator = torch.Generator().manual_seed(2017)
    ordinary = torch.tensor([number for number in range(len(tokenizer)) if number not in tokenizer.all_special_ids])
    lengths = torch.randint(5, 31, (count,), generator=generator)
    return [
        tokenizer.decode(ordinary[torch.randint(len(ordinary), (int(length),), generator=generator)]).strip()
        for length in lengths
    ]


def compare(
    ours: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    theirs: Any,
    sentences: Sequence[str],
    searches: Mapping[str, tuple[Settings, Settings]],
    references: Sequence[str] | None = None,
    exact: tuple[str, ...] = (),
) -> Agreement:
    """Compare log-probabilities, and the translations of greedy search and of others.

    Parameters
    ----------
    ours, tokenizer
        Our model, on a CPU.
    theirs : model of transformers or of `interop.engines`
        Of the same tokens.
    sentences : sequence of str
    searches : mapping of str to (dict, dict)
        By name, the arguments of ``generate()`` for ours and for theirs.
    references : sequence of str or None, default=None
        Translations by people.
    exact : tuple of str, default=()
        The names of `searches` that must give the same in float32, as greedy search must.
    """
    longest = _longest(ours.config, theirs.config)
    limit = {"max_source_length": longest, "num_return_sequences": 1} | _length_limit(longest, MAX_NEW_TOKENS)
    equal, chrf, reference_chrf = {}, {}, {}
    for name, settings in {"greedy": ({"num_beams": 1}, {"num_beams": 1}), **searches}.items():
        mine, other = (
            [hypotheses[0].text for hypotheses in translate(model, tokenizer, sentences, **given, **limit)]
            for model, given in zip((ours, theirs), settings, strict=True)
        )
        equal[name] = sum(map(str.__eq__, mine, other))
        chrf[name] = CHRF().corpus_score(other, [mine]).score
        if references is not None:
            scores = [CHRF().corpus_score(texts, [references]).score for texts in (mine, other)]
            reference_chrf[name] = scores[0], scores[1]
    difference = _largest_difference(ours, tokenizer, theirs, sentences, longest)
    return Agreement(len(sentences), difference, equal, chrf, reference_chrf, ("greedy", *exact))


@torch.inference_mode()
def log_probabilities(model: Any, input_ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return those of (B, T) labels for (B, S) sources by a model; ``<pad>`` is never a candidate."""
    if hasattr(model, "log_probabilities"):  # of `interop.engines`
        return model.log_probabilities(input_ids, mask, labels)
    # By ours, as FSMT's own method puts the last label first: ``</s>``, where the labels hold it.
    decoder_input_ids = shift_tokens_right(labels, model.config.pad_token_id, model.config.decoder_start_token_id)
    # FSMT looks ahead where it may cache.
    inputs = {"attention_mask": mask, "decoder_input_ids": decoder_input_ids, "use_cache": False}
    logits = model(input_ids, **inputs).logits.float()
    logits[..., model.config.pad_token_id] = -torch.inf
    return logits.log_softmax(-1).gather(2, labels[..., None])[..., 0]


def _longest(*configs: Any) -> int | None:
    """Return the most tokens that the tables of positions of all models have room for; None where none has a table."""
    return min(filter(None, map(max_positions, configs)), default=None)


def _length_limit(longest: int | None, most: int) -> dict[str, int]:
    """Return the argument of ``generate()`` for as many tokens, or as many as there is room for."""
    return {"max_new_tokens": min(most, (longest or most + 1) - 1)}


def _largest_difference(
    ours: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    theirs: Any,
    sentences: Sequence[str],
    longest: int | None,
) -> float:
    largest = 0.0
    # Whatever the model's own settings ask for.
    how = {"num_beams": 1, "num_return_sequences": 1, "return_dict_in_generate": False}
    how |= _length_limit(longest, MAX_LABELS)
    cut = {} if longest is None else {"truncation": True, "max_length": longest}
    for start in range(0, len(sentences), BATCH):
        batch = tokenizer(sentences[start : start + BATCH], **cut, padding=True, return_tensors="pt")
        labels = ours.generate(batch.input_ids, attention_mask=batch.attention_mask, **how)
        labels = labels[:, 1:]
        is_real = labels != ours.config.pad_token_id
        labels = labels.masked_fill(~is_real, ours.config.eos_token_id)
        mine, other = (
            log_probabilities(model, batch.input_ids, batch.attention_mask, labels) for model in (ours, theirs)
        )
        largest = max(largest, (mine - other).masked_fill(~is_real, 0).abs().max().item())
    return largest
