"""Translation speed: `generate()` against MarianMT of the same weights, and against CTranslate2, in turns.

Every translation has the same number of tokens, so that a token is the same work for all. A rate counts the tokens of
the translations, and the time from source ids to target ids.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from training.benchmarks.records import GenerationRow, Rates, as_record
from training.machine import usable_cores
from training.trainer.model import check_has_twin, load_config
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.models.modeling_vaswani import sinusoids


OURS = "ours"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Contender:
    """A model or library that translates the batch once: with `beams` hypotheses (1: greedy), in some precision."""

    name: str
    beams: int
    precision: str
    translate: Callable[[], None]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``generate``."""
    group = parser.add_argument_group("generate")
    group.add_argument(
        "--model_config", default="base-en-de", help="a folder of hub_configs/, or one with a config.json"
    )
    group.add_argument("--batch_sentences", type=int, default=32, help="sentences, of 10 to 40 tokens, in a batch")
    group.add_argument("--new_tokens", type=int, default=25, help="tokens of every translation")
    group.add_argument(
        "--beams", type=int, default=4, help="hypotheses of a beam search; greedy search is measured too"
    )
    group.add_argument("--turns", type=int, default=5, help="turns that every contender takes, after one to warm up")


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Let all contenders take their turns, and return a row for each."""
    if options.device == "cpu":
        torch.set_num_threads(usable_cores())
    config = load_config(options.model_config)
    check_has_twin(config)
    with tempfile.TemporaryDirectory() as folder:
        contenders, missing = enter(config, options, Path(folder))
        seconds: list[list[float]] = [[] for _ in contenders]
        for turn in range(options.turns + 1):
            for contender, taken in zip(contenders, seconds, strict=True):
                taken.append(time_of(contender.translate, options.device))
            print(f"turn {turn}/{options.turns}", file=sys.stderr, flush=True)
    tokens = options.batch_sentences * options.new_tokens
    rates = [Rates.of([tokens / each for each in taken[1:]]) for taken in seconds]  # the first turn is warm-up
    return [as_record(row) for row in compare(contenders, rates) + missing]


def compare(contenders: Sequence[Contender], rates: Sequence[Rates]) -> list[GenerationRow]:
    """Return a row for each contender; ours in bf16, with as many beams, is what it is compared with."""
    measured = list(zip(contenders, rates, strict=True))
    ours = {
        contender.beams: rate.median
        for contender, rate in measured
        if (contender.name, contender.precision) == (OURS, "bf16")
    }
    return [
        GenerationRow(
            what=f"{contender.name}, target tokens/s",
            search=f"beam {contender.beams}" if contender.beams > 1 else "greedy",
            precision=contender.precision,
            **asdict(rate),
            ours_is_times=ours[contender.beams] / rate.median,
        )
        for contender, rate in measured
    ]


def time_of(translate: Callable[[], None], device: str) -> float:
    """Return the seconds of one run."""
    started = time.perf_counter()
    translate()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def enter(
    config: VaswaniConfig, options: argparse.Namespace, folder: Path
) -> tuple[list[Contender], list[GenerationRow]]:
    """Return all contenders, and rows that say which are missing."""
    torch.manual_seed(2017)
    ours = VaswaniForConditionalGeneration(config).eval()
    marian = marian_like(ours)
    lengths = torch.randint(10, 41, (options.batch_sentences,))
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    size = config.vocab_size
    ids = torch.randint(1, size - 1, mask.shape).masked_fill(~mask, size - 1)
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    inputs = {name: tensor.to(options.device) for name, tensor in inputs.items()}
    exactly = {"min_new_tokens": options.new_tokens, "max_new_tokens": options.new_tokens}
    exactly |= {"suppress_tokens": [config.pad_token_id], "do_sample": False}

    def by(model: torch.nn.Module, **settings: Any) -> Callable[[], None]:
        return lambda: check(model.generate(**inputs, **exactly, **settings)[:, 1:], options)

    contenders: list[Contender] = []
    for precision, dtype in DTYPES.items():
        mine, theirs = (copy_of(model, dtype, options.device) for model in (ours, marian))
        for beams in (1, options.beams):
            contenders.append(Contender(OURS, beams, precision, by(mine, num_beams=beams, length_penalty_alpha=0.6)))
            contenders.append(Contender("MarianMT", beams, precision, by(theirs, num_beams=beams)))
        stock = by(mine, num_beams=options.beams, length_penalty_alpha=None)
        contenders.append(Contender("our model, transformers' beam", options.beams, precision, stock))
    if find_spec("ctranslate2") is None:
        return contenders, [GenerationRow("CTranslate2: not installed (pip install ctranslate2)")]
    sources = [[f"w{token}" for token in row[: int(length)]] for row, length in zip(ids, lengths, strict=True)]
    return contenders + ctranslate2(marian, sources, options, folder), []


def check(translations: Any, options: argparse.Namespace) -> None:
    """Make sure that the work was done: every sentence, to its full length."""
    assert len(translations) == options.batch_sentences
    assert all(len(translation) == options.new_tokens for translation in translations)


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


def ctranslate2(
    marian: MarianMTModel, sources: list[list[str]], options: argparse.Namespace, folder: Path
) -> list[Contender]:
    """Return CTranslate2's contenders, which translate by the same weights."""
    library, converters = import_module("ctranslate2"), import_module("ctranslate2.converters")
    size = marian.config.vocab_size
    vocabulary = {"</s>": 0} | {f"w{token}": token for token in range(1, size - 1)} | {"<pad>": size - 1}
    words = Tokenizer(WordLevel(vocabulary, unk_token="w1"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="<pad>", unk_token="w1")
    marian.save_pretrained(folder / "marian")
    tokenizer.save_pretrained(folder / "marian")
    converters.TransformersConverter(str(folder / "marian")).convert(str(folder / "ct2"), quantization=None)
    contenders: list[Contender] = []
    for precision, kind in (("fp32", "float32"), ("int8", "int8")):
        translator = library.Translator(
            str(folder / "ct2"),
            device=options.device,
            compute_type=kind,
            inter_threads=1,
            intra_threads=usable_cores(),
        )
        for beams in (1, options.beams):

            def translate(translator: Any = translator, beams: int = beams) -> None:
                results = translator.translate_batch(
                    sources,
                    beam_size=beams,
                    min_decoding_length=options.new_tokens,
                    max_decoding_length=options.new_tokens,
                )
                check([result.hypotheses[0] for result in results], options)

            contenders.append(Contender("CTranslate2", beams, precision, translate))
    return contenders
