"""What the web demo does with a model: translate lines and files, and say which words it looked at."""

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.errors import UserError, check_is_unicode
from vaswani.models.decoding_vaswani import DecodingSettings
from vaswani.models.generation_vaswani import max_positions
from vaswani.models.trees_vaswani import TREES
from vaswani.pictures.attention import END, join_words, read_attention
from vaswani.pictures.attention_page import shown
from vaswani.text.lines import decode_line
from vaswani.translation import Hypothesis, translate


MOST_LINES = 50  # that are typed; a file may have any number
MOST_TOKENS = 512  # of a line
MOST_BEAMS, MOST_ALPHA = 12, 2.0


class Alignment(NamedTuple):
    """Which words of the source a model looked at for each word that it wrote.

    Attributes
    ----------
    source : list of str
        S words; the last is the end of the sentence, ``</s>``.
    target : list of str
        T words.
    weights : list of list of float
        (T, S): the mean over all heads of all layers of encoder-decoder attention.
    """

    source: list[str]
    target: list[str]
    weights: list[list[float]]


class Interpreter:
    """A model, for people who type.

    Parameters
    ----------
    model, tokenizer
        A translation model of this package, or of `interop.engines`, and its tokenizer.

    Raises
    ------
    UserError
        If the model does not translate.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        config = model.config
        if not hasattr(model, "decoder_state") or getattr(config, "target_lang", None) == TREES:
            raise UserError(f"model={config.name_or_path!r} must be a translation model of this package")
        self.model, self.tokenizer = model, tokenizer
        self.languages = (config.source_lang, config.target_lang)
        self.num_beams = model.generation_config.num_beams or 1
        # None where the model's own search has another penalty than the paper's.
        self.alpha = DecodingSettings.read({}, None, model.generation_config).length_penalty_alpha
        self.most_beams = max(MOST_BEAMS, self.num_beams)
        self.least_alpha, self.most_alpha = min(0.0, self.alpha or 0.0), max(MOST_ALPHA, self.alpha or 0.0)
        self.most_tokens = min(MOST_TOKENS, max_positions(config) or MOST_TOKENS)

    @property
    def has_attention(self) -> bool:
        """Whether there is attention to show: another library gives translations alone, and some models have none."""
        return not hasattr(self.model, "engine") and getattr(self.model.config, "attention", None) != "none"

    def lines(self, text: str) -> list[str]:
        """Divide a text into lines, each of which is translated by itself.

        Raises
        ------
        UserError
            If there is nothing to translate, or too much, or it is no text.
        """
        if not isinstance(text, str):
            raise UserError(f"text={text!r} must be a string")
        check_is_unicode("text", text)
        lines = "\n".join(line.rstrip("\r") for line in text.split("\n")).strip("\n").split("\n")
        if not text.strip():
            raise UserError("There is nothing to translate: type a sentence.")
        if len(lines) > MOST_LINES:
            raise UserError(f"These are {len(lines):,} lines, and {MOST_LINES} fit here: translate them as a file.")
        self._check_lengths(lines)
        return lines

    def _check_lengths(self, lines: Sequence[str]) -> None:
        for number, ids in enumerate(self.tokenizer(list(lines), verbose=False).input_ids, start=1):
            if len(ids) > self.most_tokens:
                raise UserError(
                    f"Line {number} has {len(ids):,} word pieces, and {self.most_tokens} fit: "
                    "break it into sentences, a line each."
                )

    def alternatives(self, lines: Sequence[str], num_beams: int, alpha: float | None) -> list[list[Hypothesis]]:
        """Translate lines: of each as many translations as beams, the best first, with their scores."""
        return self._translate(lines, num_beams, alpha, num_return_sequences=num_beams, with_scores=True)

    def translate_file(
        self,
        path: Path,
        num_beams: int,
        alpha: float | None,
        destination: Path,
        on_lines: Callable[[int, int], object],
    ) -> None:
        """Translate a text file, a sentence a line.

        Parameters
        ----------
        path : Path
        num_beams : int
        alpha : float or None
            None leaves the length penalty to the model.
        destination : Path
            The file for the translations, a line for each line.
        on_lines : callable
            Told as it goes along how many lines of how many are done.

        Raises
        ------
        UserError
            If it holds something other than lines of UTF-8, none at all, or one that is too long.
        """
        raw = path.read_bytes().removesuffix(b"\n").split(b"\n")
        lines = [decode_line(line, path.name, number) for number, line in enumerate(raw, start=1)]
        if not any(line.strip() for line in lines):
            raise UserError(f"{path.name} has no text in it.")
        if any("\0" in line for line in lines):
            raise UserError(f"{path.name} is no text file: it must hold a sentence a line.")
        self._check_lengths(lines)
        done = 0

        def on_batch(count: int) -> None:
            nonlocal done
            done += count
            on_lines(done, len(lines))

        # One of each line, whatever the model's settings say.
        translations = self._translate(lines, num_beams, alpha, on_batch=on_batch, num_return_sequences=1)
        texts = [best.text.replace("\n", " ") for best, *_ in translations]
        destination.write_bytes("".join(f"{text}\n" for text in texts).encode("utf-8"))

    def _translate(
        self, lines: Sequence[str], num_beams: int, alpha: float | None, **given: Any
    ) -> list[list[Hypothesis]]:
        if not (isinstance(num_beams, Integral) and 1 <= num_beams <= self.most_beams):
            raise UserError(f"num_beams={num_beams!r} must be a whole number from 1 to {self.most_beams}")
        least, most = self.least_alpha, self.most_alpha
        if alpha is not None and not (isinstance(alpha, Real) and least <= alpha <= most):
            raise UserError(f"alpha={alpha!r} must be a number from {least:g} to {most:g}")
        if num_beams > 1 and alpha is not None:
            given["length_penalty_alpha"] = alpha
        return translate(self.model, self.tokenizer, lines, num_beams=num_beams, **given)

    def align(self, source: str, target: str) -> Alignment | None:
        """Say which words of a source its translation looked at; None where the model or the line has none."""
        if not source.strip() or not target.strip() or not self.has_attention:
            return None
        try:
            words = join_words(read_attention(self.model, self.tokenizer, source, target))
        except UserError:  # divided anew, a translation may be longer than what the model wrote
            return None
        written = [row for row, token in enumerate(words.target) if token != END]
        weights = words.alignment[written].tolist()
        return Alignment(shown(words.source), [shown(words.target)[row] for row in written], weights)
