"""Our Transformer for CTranslate2, a library that translates fast on CPUs and GPUs, and our search's ranking over it.

CTranslate2's beam search ranks by log-probability / length^p. Its K hypotheses of a sentence are ranked again, by the
paper's log-probability / ((5 + length) / 6)^alpha: so both find the same translation wherever it is among the K. Where
`min_new_tokens` rules out ``</s>``, it gives the probability of that to the other tokens, which our search does not.
"""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils import ModelOutput, logging

from vaswani.errors import UserError, first_line, require
from vaswani.models.configuration_vaswani import VaswaniConfig
from vaswani.models.decoding_vaswani import (
    ABOUT_OTHERS,
    PAPERS_DECODING,
    DecodingSettings,
    asks_for_something,
    wishes,
)
from vaswani.models.generation_vaswani import output_limit
from vaswani.models.modeling_vaswani import VaswaniForConditionalGeneration
from vaswani.models.search_vaswani import length_penalty
from vaswani.workers import choose_workers, usable_cores

from .companions import load_config, save_beside
from .marian import stock_length_penalty, to_marian


MODEL = "model.bin"
QUANTIZATIONS = ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")

logger = logging.get_logger(__name__)

# The settings of a generation config that mean here what they mean for our own models.
HONOURED = frozenset((
    *PAPERS_DECODING, "max_new_tokens", "min_new_tokens", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id",
    "decoder_start_token_id",
))  # fmt: skip


def library() -> Any:
    """Import CTranslate2, or say with which extra it comes."""
    return require("ctranslate2", "CTranslate2's format", "export")


def supported_types(device: str) -> list[str]:
    """Return the types in which CTranslate2 computes on a device of this machine.

    Raises
    ------
    UserError
        If there is no such device.
    """
    try:
        return sorted(library().get_supported_compute_types(device))
    except (RuntimeError, ValueError) as error:
        raise UserError(f"device={device!r} must be a device of this machine: {first_line(error)}") from error


def check_has_ctranslate2(config: VaswaniConfig) -> None:
    """Refuse a model that CTranslate2's converter would change."""
    last = config.vocab_size - 1
    for name in ("pad_token_id", "decoder_start_token_id"):
        if getattr(config, name) != last:
            raise UserError(
                f"{name}={getattr(config, name)} must be {last}, the last id, here: CTranslate2's converter drops the "
                "last type and starts from a vector of zeros"
            )


def check_settings(config: GenerationConfig, pad_token_id: int | None) -> None:
    """Refuse a generation config that asks for what `CTranslate2Model.generate` would not do."""
    for name, value in wishes(config).items():
        is_known = name in HONOURED | ABOUT_OTHERS or (
            name == "suppress_tokens" and set(value or ()) <= {pad_token_id}
        )
        if not is_known and asks_for_something(name, value):
            raise UserError(
                f"{name}={value!r} must be left out of generation_config.json here: CTranslate2 would ignore it"
            )
    if DecodingSettings.read({}, None, config).length_penalty_alpha is None:
        raise UserError("length_penalty_alpha must be a number here: CTranslate2 has no beam search of transformers'")


def save_for_ctranslate2(
    ours: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    quantization: str = "float32",
) -> None:
    """Write what `ctranslate2.Translator` opens, the tokenizer's files and our config into a folder that exists.

    Raises
    ------
    UserError
        If CTranslate2 is not installed or cannot be this model.
    """
    check_has_ctranslate2(ours.config)
    check_settings(ours.generation_config, ours.config.pad_token_id)
    library()
    from ctranslate2.converters import TransformersConverter

    marian = to_marian(ours)
    with tempfile.TemporaryDirectory() as temporary:
        marian.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        _add_positions(marian, Path(temporary) / "model.safetensors")
        TransformersConverter(temporary).convert(str(folder), quantization=quantization, force=True)
    save_beside(ours, tokenizer, folder)
    config_file = folder / "config.json"
    settings = json.loads(config_file.read_text(encoding="utf-8"))
    # Without a token for unknown words, of which a byte-level vocabulary has none, CTranslate2 would not start.
    settings["unk_token"] = settings["unk_token"] or tokenizer.eos_token
    settings["layer_norm_epsilon"] = ours.config.layer_norm_eps
    config_file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _add_positions(marian: Any, file: Path) -> None:
    """Put into a saved Marian what it leaves out when it saves: its tables of positions, which may be learned."""
    tables = {name: weight for name, weight in marian.state_dict().items() if "embed_positions" in name}
    save_file(load_file(file) | tables, file, metadata={"format": "pt"})


def load_ctranslate2(
    folder: Path, device: str | None = None, dtype: str = "auto", workers: int | None = None
) -> "CTranslate2Model":
    """Open a folder of `save_for_ctranslate2`; arguments as for `engines.load_engine`.

    Raises
    ------
    UserError
        If the folder is none, or the device, the type or the workers are not for this machine.
    """
    if device is None:
        device = "cuda" if library().get_cuda_device_count() else "cpu"
    if device not in ("cpu", "cuda"):
        raise UserError(f"device={device!r} must be 'cpu' or 'cuda' for engine 'ctranslate2'")
    workers = choose_workers(workers, torch.device(device))
    threads = max(1, usable_cores() // workers)
    return CTranslate2Model(folder, device, "default" if dtype == "auto" else dtype, workers, threads)


class CTranslate2Model:
    """A folder of `save_for_ctranslate2`, opened: in the place of a model wherever only `generate` is asked for.

    Parameters
    ----------
    folder : Path
    device : str, default="cpu"
        Or "cuda".
    compute_type : str, default="default"
        One of CTranslate2's types; "default" is the one of the folder.
    workers : int, default=1
        Batches at the same time, each on a core of its own.
    threads : int, default=1
        Cores of a batch.

    Raises
    ------
    UserError
        If the folder is none, or CTranslate2 cannot open it in this way.
    """

    decoder_state = None  # by this, `translate` knows ours: they limit each translation by its source themselves

    def __init__(
        self, folder: Path, device: str = "cpu", compute_type: str = "default", workers: int = 1, threads: int = 1
    ):
        ctranslate2 = library()
        if compute_type not in ("default", "auto", *supported_types(device)):
            raise UserError(
                f"dtype={compute_type!r} must be one of {', '.join(supported_types(device))} for engine 'ctranslate2' "
                f"on this machine's {device}"
            )
        self.config = load_config(folder)
        self.config.position_embedding_type = "learned"  # its table of positions ends, even one of sinusoids
        self.generation_config = GenerationConfig.from_pretrained(folder)
        check_settings(self.generation_config, self.config.pad_token_id)
        self.device, self.dtype, self.training = torch.device("cpu"), torch.float32, False
        self.workers, self.threads = workers, threads
        self.tokens = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        cores = {"inter_threads": workers, "intra_threads": threads} if device == "cpu" else {}
        try:
            self.translator = ctranslate2.Translator(str(folder), device=device, compute_type=compute_type, **cores)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"CTranslate2 cannot open {str(folder)!r}: {error}") from error

    @property
    def engine(self) -> str:
        """What computes, such as "CTranslate2 int8_float32"."""
        return f"CTranslate2 {self.translator.compute_type}"

    def __str__(self) -> str:
        """Say who computes and how, such as "CTranslate2 int8_float32, 2 worker(s) of 1 thread(s) each, cpu"."""
        who = f", {self.workers} worker(s) of {self.threads} thread(s) each" if self.translator.device == "cpu" else ""
        return f"{self.engine}{who}, {self.translator.device}"

    def eval(self) -> "CTranslate2Model":
        """Return itself: it cannot be trained."""
        return self

    def train(self, mode: bool = True) -> "CTranslate2Model":
        """Return itself.

        Raises
        ------
        ValueError
            If it is to be trained.
        """
        if mode:
            raise ValueError("a model of CTranslate2 cannot be trained")
        return self

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        num_beams: int | None = None,
        length_penalty_alpha: float | None = None,
        max_new_tokens: int | None = None,
        min_new_tokens: int | None = None,
        num_return_sequences: int = 1,
        return_dict_in_generate: bool = False,
    ) -> Any:
        """Translate as ``generate()`` of our own models does, with the same defaults.

        Parameters
        ----------
        input_ids, attention_mask : Tensor of shape (B, S)
        num_beams, length_penalty_alpha, max_new_tokens, min_new_tokens, num_return_sequences
            As for our models.
        return_dict_in_generate : bool
            Whether to return the scores too.

        Returns
        -------
        Tensor of shape (B * num_return_sequences, T), or a ModelOutput of `sequences` and `sequences_scores`
        """
        call = {"num_beams": num_beams, "max_new_tokens": max_new_tokens, "length_penalty_alpha": length_penalty_alpha}
        given = {name: value for name, value in call.items() if value is not None}
        settings = DecodingSettings.read(given, None, self.generation_config)
        beams, alpha, extra = settings.num_beams, settings.length_penalty_alpha, settings.extra_target_tokens
        assert alpha is not None  # `check_settings`
        longest = max_new_tokens or self.generation_config.max_new_tokens or 0
        shortest = (self.generation_config.min_new_tokens if min_new_tokens is None else min_new_tokens) or 0
        least = 0 if extra is None else shortest
        limits = [
            output_limit(self.config, longest if extra is None else length, extra or 0, least=least)
            for length in attention_mask.sum(1).tolist()
        ]
        if beams == 1 and length_penalty_alpha is not None:
            logger.warning_once(f"length_penalty_alpha={alpha} has no effect with num_beams=1: it is for beam search")
        p = stock_length_penalty(alpha) if beams > 1 else 0.0
        results = self.translator.translate_batch(
            self._tokens(input_ids, attention_mask),
            max_batch_size=math.ceil(len(limits) / self.workers),
            beam_size=beams,
            num_hypotheses=beams,
            length_penalty=p,
            max_decoding_length=max(limits),
            min_decoding_length=min(shortest, max(limits)),  # its own default is 1
            max_input_length=0,
            return_scores=True,
        )
        best = [
            (score, ids[:limit])
            for result, limit in zip(results, limits, strict=True)
            for score, ids in self._ranked(result, max(limits), p, alpha if beams > 1 else 0.0)[:num_return_sequences]
        ]
        rows = [torch.tensor([self.config.decoder_start_token_id, *ids]) for _, ids in best]
        sequences = pad_sequence(rows, batch_first=True, padding_value=self.config.pad_token_id)
        if not return_dict_in_generate:
            return sequences
        return ModelOutput(sequences=sequences, sequences_scores=torch.tensor([score for score, _ in best]))

    def log_probabilities(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Return those of (B, T) labels, each up to its ``</s>``, for (B, S) sources; behind it they are 0."""
        is_before_end = (labels == self.config.eos_token_id).cumsum(1) == 0
        sources, targets = self._tokens(input_ids, attention_mask), self._tokens(labels, is_before_end)
        scores = self.translator.score_batch(sources, targets, max_input_length=0)
        rows = [torch.tensor(score.log_probs[: labels.shape[1]]) for score in scores]  # it adds </s> to each
        padded = pad_sequence(rows, batch_first=True)
        return pad(padded, (0, labels.shape[1] - padded.shape[1]))

    def _tokens(self, ids: torch.Tensor, mask: torch.Tensor) -> list[list[str]]:
        """Return the tokens of (B, T) ids where the mask is true."""
        rows = [row[is_real].tolist() for row, is_real in zip(ids, mask.bool(), strict=True)]
        return [[self.tokens[token] for token in row] for row in rows]

    def _ranked(self, result: Any, longest: int, p: float, alpha: float) -> list[tuple[float, list[int]]]:
        """Return the hypotheses of a sentence with their scores, the best first.

        CTranslate2 leaves ``</s>`` out, and counts it; only those of the `longest` length ended without.
        """
        ranked = []
        for score, tokens in zip(result.scores, result.hypotheses, strict=True):
            ids = [self.ids[token] for token in tokens]
            if len(ids) < longest:
                ids.append(self.config.eos_token_id)
            log_probability = score * len(ids) ** p
            ranked.append((log_probability / float(length_penalty(len(ids), alpha)), ids))
        return sorted(ranked, key=lambda each: -each[0])
