"""The translation pipeline: text in, text out, as transformers 4 had it and transformers 5 no longer does.

One file for two worlds: registered by ``import vaswani``, and shipped in every saved folder for
``pipeline("translation", model=..., trust_remote_code=True)`` where the package is absent.
"""

from collections.abc import Iterable, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Pipeline
from transformers.tokenization_utils_base import LARGE_INTEGER

from .generation_vaswani import length_arguments, max_positions
from .trees_vaswani import TREES


def tokenizer_problem(model: Any, tokenizer: Any) -> str | None:
    """Say in half a sentence why a tokenizer cannot be that of a model, or return None.

    Models that are not ours may have more rows than their tokenizer has types, but not fewer.
    """
    rows, types = model.config.vocab_size, 0 if tokenizer is None else len(tokenizer)
    if tokenizer is None or (tokenizer.eos_token_id is None and types < rows):
        # transformers makes an empty one where a folder has none
        return "has no tokenizer: it must hold a tokenizer.json beside the model"
    if types > rows or (types < rows and hasattr(model, "decoder_state")):
        return f"has a vocabulary of {rows:,} types but a tokenizer of {types:,}: both must be equal"
    if getattr(tokenizer, "padding_side", "right") != "right" and hasattr(model, "decoder_state"):
        return "has a tokenizer that pads on the left: padding_side must be 'right', or positions would be others"
    return None


def as_inputs(inputs: Any) -> Any:
    """Turn anything that yields strings into a list if it has a length, else into a generator, for the base class.

    Raises
    ------
    ValueError
        If the input has columns, one of which must be chosen.
    """
    if isinstance(inputs, Mapping) or hasattr(inputs, "column_names") or getattr(inputs, "ndim", 1) != 1:
        raise ValueError(
            f"inputs must be strings, but a {type(inputs).__name__} has columns: choose one, such as inputs['en']"
        )
    if isinstance(inputs, str | bytes | Dataset) or not isinstance(inputs, Iterable):
        return inputs
    return list(inputs) if isinstance(inputs, Sized) else (sentence for sentence in inputs)


def check_no_dict(generate_kwargs: Mapping[str, Any]) -> None:
    """Refuse a call of a pipeline that asks ``generate()`` for a ModelOutput.

    Raises
    ------
    ValueError
        If it does.
    """
    if generate_kwargs.get("return_dict_in_generate"):
        raise ValueError(
            "return_dict_in_generate=True must be left out: a pipeline returns text; generate() returns more"
        )


def hypotheses_of(output: Any, batch_size: int) -> torch.Tensor:
    """Return what ``generate()`` gave, (B * n, T) ids, as (B, n, T), so that the base class can take a batch apart."""
    ids = getattr(output, "sequences", output)  # the model's generation config may ask for a ModelOutput
    return ids.reshape(batch_size, -1, ids.shape[-1])


class TranslationPipeline(Pipeline):
    """Translate sentences with an encoder-decoder model.

    A string gives ``[{"translation_text": ...}]``. A list, a tuple, a column of a `datasets` table, an array or a
    Series of strings gives a list of one such dict for each, in order. A generator or another iterable of strings, or
    a dataset of torch's such as a `KeyDataset`, gives an iterable of lists of one dict, translated as they are asked
    for. With ``num_return_sequences=n`` each string gives a list of n dicts.

    Parameters
    ----------
    model, tokenizer
        A sequence-to-sequence model and its tokenizer.
    task : str, default="translation"
        Or ``"translation_XX_to_YY"``, which must name the direction that the model was trained on.
    src_lang, tgt_lang : str, optional
        The model's languages, here or at a call. They change nothing, but other languages are refused.
    **kwargs
        As for every transformers pipeline (`device`, `batch_size`, ...), and every option of ``generate()``. Where no
        length is given, neither here nor in the model's settings, an output may have the source's length + 50 tokens,
        as in the paper (section 6.1).

    Raises
    ------
    ValueError
        If the model is a parser; if task, `src_lang` or `tgt_lang` name another direction than the model's, or the
        last two any where the model does not know its languages; if the tokenizer is missing or has another number of
        types; or if an input is no string.

    Examples
    --------
    ``pipeline("translation", model="runs/demo/model")("The dog sleeps.")`` gives
    ``[{"translation_text": "Der Hund schläft."}]``.
    """

    _writes_trees = False
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        problem = tokenizer_problem(self.model, self.tokenizer)
        if problem is not None:
            raise ValueError(f"model={self.model.config.name_or_path!r} {problem}")
        languages = self._languages()
        if (languages[1] == TREES) != self._writes_trees:
            task = "translation" if self._writes_trees else "parse"
            raise ValueError(f"model={self.model.config.name_or_path!r} is for the task {task!r}, not {self.task!r}")
        direction = "translation_{}_to_{}".format(*languages)
        if str(self.task).startswith("translation_") and all(languages) and self.task != direction:
            raise ValueError(f'task="{self.task}" does not fit this model, which does "{direction}"')

    def _languages(self) -> tuple[str | None, str | None]:
        config = self.model.config
        return getattr(config, "source_lang", None), getattr(config, "target_lang", None)

    def _check_languages(self, src_lang: str | None, tgt_lang: str | None) -> None:
        languages = self._languages()
        for name, given, own in zip(("src_lang", "tgt_lang"), (src_lang, tgt_lang), languages, strict=True):
            if given is not None and not own:
                raise ValueError(f"{name}={given!r} must be left out: this model does not know its languages")
            if given not in (None, own):
                direction = "from {!r} to {!r}".format(*languages)
                raise ValueError(f"{name}={given!r} must be {own!r}: this model translates {direction}")

    def _sanitize_parameters(
        self,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        truncation: bool | None = None,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict, dict, dict]:
        self._check_languages(src_lang, tgt_lang)
        if return_text is not None and return_text == bool(return_tensors):
            raise ValueError(f"return_text={return_text} must be {not return_text}: return_tensors={return_tensors}")
        check_no_dict(generate_kwargs)
        preprocess = {} if truncation is None else {"truncation": truncation}
        postprocess = {"return_tensors": return_tensors, "clean_up_tokenization_spaces": clean_up_tokenization_spaces}
        return preprocess, generate_kwargs, {name: value for name, value in postprocess.items() if value is not None}

    def __call__(self, inputs: str | Iterable[str], **kwargs: Any) -> Any:
        """Translate a string, or anything that yields strings."""
        inputs = as_inputs(inputs)
        if isinstance(inputs, Sized) and not isinstance(inputs, str | bytes) and len(inputs) == 0:
            return []
        results = super().__call__(inputs, **kwargs)
        if isinstance(inputs, list) and all(len(result) == 1 for result in results):
            return [result[0] for result in results]
        return results

    def preprocess(self, sentence: str, truncation: bool = False) -> dict[str, torch.Tensor]:
        """Encode one sentence: (1, S) ids ending in ``</s>`` and their mask."""
        if not isinstance(sentence, str):
            raise ValueError(f"a sentence must be a string, not {type(sentence).__name__}: {sentence!r}")
        limits = [self.tokenizer.model_max_length, max_positions(self.model.config)]
        limits = [limit for limit in limits if limit is not None and limit < LARGE_INTEGER]  # others mean no limit
        most = min(limits, default=None) if truncation else None
        encoded = self.tokenizer(sentence, truncation=truncation, max_length=most, return_tensors="pt")
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def forward(self, model_inputs: dict[str, Any], **forward_params: Any) -> dict[str, Any]:
        """Translate a batch without dropout, also by a model in the middle of its training, and leave it as it was."""
        if not self.model.training:
            return super().forward(model_inputs, **forward_params)
        in_training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            return super().forward(model_inputs, **forward_params)
        finally:
            for module in in_training:
                module.training = True

    def _forward(self, model_inputs: dict[str, torch.Tensor], **generate_kwargs: Any) -> dict[str, torch.Tensor]:
        batch_size, source_length = model_inputs["input_ids"].shape
        generate_kwargs |= length_arguments(self.model, source_length, generate_kwargs)
        output = self.model.generate(**model_inputs, **generate_kwargs)
        return {"output_ids": hypotheses_of(output, batch_size)}

    def postprocess(
        self,
        model_outputs: dict[str, torch.Tensor],
        return_tensors: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        """Decode the n hypotheses of one sentence, (1, n, T) ids."""
        hypotheses = model_outputs["output_ids"][0]
        if return_tensors:
            return [{"translation_token_ids": ids} for ids in hypotheses]
        texts = self.tokenizer.batch_decode(
            hypotheses, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
        )
        return [{"translation_text": text} for text in texts]


__all__ = ["TranslationPipeline"]
