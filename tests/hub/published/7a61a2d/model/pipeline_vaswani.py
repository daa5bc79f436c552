"""The translation pipeline: text in, text out, as transformers 4 had it and transformers 5 no longer does.

One file for two worlds: registered by ``import vaswani``, and shipped in every saved folder for
``pipeline("translation", model=..., trust_remote_code=True)`` where the package is absent.
"""

from collections.abc import Iterable
from typing import Any

import torch
from transformers import Pipeline


# The paper lets an output grow to the length of its input plus this many tokens (section 6.1).
EXTRA_TARGET_TOKENS = 50


def tokenizer_problem(model: Any, tokenizer: Any) -> str | None:
    """Say in half a sentence why a tokenizer cannot be that of a model, or return None.

    Other models than this project's may have rows to spare, but no fewer than their tokenizer has types.
    """
    rows, types = model.config.vocab_size, 0 if tokenizer is None else len(tokenizer)
    if tokenizer is None or (tokenizer.eos_token_id is None and types < rows):
        # transformers makes an empty one where a folder has none
        return "has no tokenizer: it must hold a tokenizer.json beside the model"
    if types > rows or (types < rows and model.config.model_type == "vaswani"):
        return f"has a vocabulary of {rows:,} types but a tokenizer of {types:,}: both must be equal"
    return None


class TranslationPipeline(Pipeline):
    """Translate sentences with an encoder-decoder model.

    A string gives ``[{"translation_text": ...}]``, a list of strings one such dict each, in order; a generator or a
    dataset gives an iterator over them. With ``num_return_sequences=n`` each input gives a list of n dicts.

    Parameters
    ----------
    model, tokenizer
        A sequence-to-sequence model and its tokenizer.
    task : str, default="translation"
        Or ``"translation_XX_to_YY"``, which must name the direction that the model was trained on.
    **kwargs
        As for every transformers pipeline (`device`, `batch_size`, ...), and every option of ``generate()``. Where no
        length is given, neither here nor in the model's settings, an output may have the source's length + 50 tokens,
        as in the paper (section 6.1).

    Raises
    ------
    ValueError
        If the task names another direction than the model's, the tokenizer is missing or has another number of types,
        or an input is no string.

    Examples
    --------
    ``pipeline("translation", model="runs/demo/model")("The dog sleeps.")`` gives
    ``[{"translation_text": "Der Hund schläft."}]``.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        problem = tokenizer_problem(self.model, self.tokenizer)
        if problem is not None:
            raise ValueError(f"model={self.model.config.name_or_path!r} {problem}")
        languages = getattr(self.model.config, "source_lang", None), getattr(self.model.config, "target_lang", None)
        direction = "translation_{}_to_{}".format(*languages)
        if self.task and self.task != "translation" and all(languages) and self.task != direction:
            raise ValueError(f'task="{self.task}" does not fit this model, which does "{direction}"')

    def _sanitize_parameters(
        self,
        truncation: bool | None = None,
        return_tensors: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict, dict, dict]:
        preprocess = {} if truncation is None else {"truncation": truncation}
        postprocess = {"return_tensors": return_tensors, "clean_up_tokenization_spaces": clean_up_tokenization_spaces}
        return preprocess, generate_kwargs, {name: value for name, value in postprocess.items() if value is not None}

    def __call__(self, inputs: str | Iterable[str], **kwargs: Any) -> Any:
        """Translate a string, a list of strings, or whatever yields strings."""
        if isinstance(inputs, list) and not inputs:
            return []
        results = super().__call__(inputs, **kwargs)
        if isinstance(inputs, list) and all(len(result) == 1 for result in results):
            return [result[0] for result in results]
        return results

    def preprocess(self, sentence: str, truncation: bool = False) -> dict[str, torch.Tensor]:
        """Encode one sentence: (1, S) ids ending in ``</s>`` and their mask."""
        if not isinstance(sentence, str):
            raise ValueError(f"a sentence must be a string, not {type(sentence).__name__}: {sentence!r}")
        encoded = self.tokenizer(sentence, truncation=truncation, return_tensors="pt")
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def _forward(self, model_inputs: dict[str, torch.Tensor], **generate_kwargs: Any) -> dict[str, torch.Tensor]:
        batch_size, source_length = model_inputs["input_ids"].shape
        given = generate_kwargs.get("generation_config")
        given = (given.to_diff_dict() if given is not None else {}) | generate_kwargs
        lengths = ("max_length", "max_new_tokens", "extra_target_tokens")
        default = getattr(self.model.generation_config, "extra_target_tokens", None)
        if default is None and all(given.get(name) is None for name in lengths):
            generate_kwargs["max_new_tokens"] = source_length + EXTRA_TARGET_TOKENS
        output_ids = self.model.generate(**model_inputs, **generate_kwargs)
        # (B * n, T) -> (B, n, T), so that the base class can take a batch apart
        return {"output_ids": output_ids.reshape(batch_size, -1, output_ids.shape[-1])}

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
