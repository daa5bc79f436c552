"""The parsing pipeline: text in, a bracketed tree out.

One file for two worlds, as `pipeline_vaswani.py`: registered by ``import vaswani``, and shipped in every saved folder
for ``pipeline("parse", model=..., trust_remote_code=True)`` where the package is absent.
"""

import re
from typing import Any, NamedTuple

from transformers import LogitsProcessorList

from .generation_vaswani import length_arguments
from .legal_trees_vaswani import LegalTrees
from .pipeline_vaswani import TranslationPipeline, check_no_dict, hypotheses_of
from .trees_vaswani import BRACKETS, restore


# How the treebank divides text into words: each pattern is replaced in turn, then spaces divide.
DIVISIONS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        ("[\u201c\u201e]", " `` "),
        ("\u201d", " '' "),
        (r"(^|(?<=[\s(\[{<]))\u2018", " ` "),
        ("[\u2018\u2019]", "'"),
        (r"(?<!\\)/", r"\\/"),
        (r'(^|(?<=[\s(\[{<]))"', " `` "),
        (r'"', " '' "),
        (r"\.\.\.", " ... "),
        (r"--+", " -- "),
        (r"[;@#$%&?!()\[\]{}<>]", r" \g<0> "),
        (r"[,:](?!\d)", r" \g<0> "),
        (r"(?<=[^\s.])\.(?=[\s\])}'>]*$)", " ."),
        (r"(?<=[^'\s])'(?=\s|$)", " '"),
        (r"(?i)(?<=\w)('(?:s|m|d|ll|re|ve))(?=\s|$)", r" \1"),
        (r"(?i)(?<=\w)(n't)(?=\s|$)", r" \1"),
        (r"(?i)\b(can)(not)\b", r"\1 \2"),
    )
]
WORD_AND_TAG = "word", "part of speech"
# Arguments of `TranslationPipeline` that say nothing about a tree.
OF_TRANSLATION = (
    "src_lang", "tgt_lang", "truncation", "return_tensors", "return_text", "clean_up_tokenization_spaces",
)  # fmt: skip


class Sentence(NamedTuple):
    """The words of a sentence, and their parts of speech where these are known."""

    words: list[str]
    tags: list[str] | None = None


def read_sentence(given: Any) -> Sentence:
    """Read a sentence: text, which is divided into words as in the treebank, or words, or pairs of word and tag.

    Raises
    ------
    ValueError
        If it is something else, or empty, or a word or a part of speech is empty or holds a bracket or white space.
    """
    if isinstance(given, str):
        words = divide(given)
        if not words:
            raise ValueError(f"a sentence must hold a word, but {given!r} has none")
        return Sentence(words)
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"a sentence must be text, words, or pairs of word and part of speech, not {given!r}")
    parts = [list(part) if isinstance(part, list | tuple) else [part] for part in given]
    widths = {len(part) for part in parts}
    if widths not in ({1}, {2}) or not all(isinstance(text, str) for part in parts for text in part):
        raise ValueError(f"a sentence must be text, words, or pairs of word and part of speech, not {given!r}")
    for text, what in ((text, what) for part in parts for text, what in zip(part, WORD_AND_TAG, strict=False)):
        if not text or re.search(r"[\s()]", text):
            raise ValueError(
                f"the {what} {text!r} must have no white space and no brackets, which the treebank writes as "
                f"{' and '.join(BRACKETS.values())}"
            )
    return Sentence([part[0] for part in parts], [part[1] for part in parts] if widths == {2} else None)


def divide(text: str) -> list[str]:
    """Divide text into words as the treebank does: "It isn't (new)" gives It, is, n't, -LRB-, new, -RRB-."""
    for pattern, replacement in DIVISIONS:
        text = pattern.sub(replacement, text)
    return [BRACKETS.get(word, word) for word in text.split()]


class ParsingPipeline(TranslationPipeline):
    """Parse sentences with a model that was trained on trees (section 6.3).

    A sentence is text, which is divided into words as in the treebank; or a list of words; or a list of pairs of word
    and part of speech. It gives ``[{"tree": "(S (NP ...) ...)", "repairs": 0}]``: the tree, in brackets that
    ``nltk.Tree.fromstring`` reads, over just these words, and in how many places what the model wrote had to be
    repaired (`trees_vaswani.restore`). A list of texts, of lists of words, or of lists of pairs gives a list of one
    such dict for each; a list of strings is a list of texts.

    Parameters
    ----------
    model, tokenizer
        A parser and its tokenizer.
    constrained : bool, default=True
        Here or at a call: let the search write nothing but trees over the words (`LegalTrees`).
    **kwargs
        As for every transformers pipeline, and every option of ``generate()``.

    Raises
    ------
    ValueError
        If a sentence is empty or nothing of these, a word or a part of speech holds a bracket, the model is no parser,
        the constrained search does not know a part of speech, or an argument is for translation alone.

    Examples
    --------
    ``pipeline("parse", model="runs/parser/model")("The dog sleeps.")`` gives
    ``[{"tree": "(S (NP (DT The) (NN dog)) (VP (VBZ sleeps)) (. .))", "repairs": 0}]``.
    """

    _writes_trees = True

    def _sanitize_parameters(
        self, constrained: bool | None = None, **generate_kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        for name in OF_TRANSLATION:
            if (value := generate_kwargs.get(name)) is not None:
                raise ValueError(f"{name}={value!r} must be left out: it is for the task 'translation'")
        check_no_dict(generate_kwargs)
        return {}, generate_kwargs | ({} if constrained is None else {"constrained": constrained}), {}

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Parse a sentence, or anything that yields sentences."""
        is_pairs = isinstance(inputs, list | tuple) and bool(inputs) and isinstance(inputs[0], tuple)
        if not is_pairs:
            return super().__call__(inputs, **kwargs)
        return super().__call__([list(inputs)], **kwargs)

    def preprocess(self, sentence: Any) -> dict[str, Any]:
        """Encode one sentence: (1, S) ids ending in ``</s>`` and their mask, with the words that they are of."""
        words, tags = read_sentence(sentence)
        encoded = self.tokenizer(" ".join(words), return_tensors="pt")
        tensors = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        return tensors | {"words": words, "tags": tags}

    def _forward(
        self, model_inputs: dict[str, Any], constrained: bool = True, **generate_kwargs: Any
    ) -> dict[str, Any]:
        words, tags = model_inputs.pop("words"), model_inputs.pop("tags")
        is_batch = isinstance(words[0], list)
        sentences, given = (words, tags) if is_batch else ([words], [tags])
        batch_size, source_length = model_inputs["input_ids"].shape
        generate_kwargs |= length_arguments(self.model, source_length, generate_kwargs)
        if constrained:
            processors = generate_kwargs.get("logits_processor") or []
            legal = LegalTrees(self.tokenizer, sentences, given)
            generate_kwargs["logits_processor"] = LogitsProcessorList([*processors, legal])
        output = self.model.generate(**model_inputs, **generate_kwargs)
        return {"output_ids": hypotheses_of(output, batch_size), "words": words, "tags": tags}

    def postprocess(self, model_outputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Make trees of the n hypotheses of one sentence, (1, n, T) ids."""
        texts = self.tokenizer.batch_decode(model_outputs["output_ids"][0], skip_special_tokens=True)
        restored = [restore(text, model_outputs["words"], model_outputs["tags"]) for text in texts]
        return [{"tree": str(tree), "repairs": repairs} for tree, repairs in restored]


__all__ = ["ParsingPipeline"]
