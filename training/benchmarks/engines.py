"""What each engine is good for: `vaswani translate` with the same model and text, exported for each of them.

Every figure is of whole commands, as users run them, in turns: each with all cores, in the way that it takes itself.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sacrebleu.metrics import CHRF
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from training.benchmarks.processes import run_and_watch
from training.benchmarks.records import GIGA, EngineRow, Rates, as_record
from training.benchmarks.start import make_tokenizer, seconds_to_a_line
from training.trainer.model import load_config
from vaswani import VaswaniForConditionalGeneration
from vaswani.cli.shared.flags import at_least_one
from vaswani.errors import UserError
from vaswani.interop.ctranslate2 import save_for_ctranslate2
from vaswani.interop.marian import save_as_marian
from vaswani.interop.onnx import save_for_onnx
from vaswani.loading import load
from vaswani.models.packing_vaswani import multiplies_bfloat16
from vaswani.text.parallel import read_lines


SENTENCES = 64  # made up, where no text is given
NEW_TOKENS = 10  # of each, where the model has random weights and finds no end


class Contender(NamedTuple):
    """A command: what it is called, and its flags."""

    engine: str
    precision: str
    flags: list[str]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``engines``."""
    group = parser.add_argument_group("engines")
    group.add_argument("--engine_model", help="a published folder (default: base-en-de of random weights)")
    group.add_argument("--engine_source", help="a file of sentences for it, a line each (default: made up)")
    group.add_argument(
        "--engine_beams", type=at_least_one, default=4, help="beams of the search (default: %(default)s)"
    )
    group.add_argument(
        "--engine_turns",
        type=at_least_one,
        default=3,
        help="turns of each, after a start to warm up (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Export, let all translate in turns, and return a row for each.

    Raises
    ------
    UserError
        If one of model and text is given without the other or cannot be read, or a command fails.
    """
    if (options.engine_model is None) != (options.engine_source is None):
        raise UserError("engine_model and engine_source must be given both: the text is for the model")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        flags = [*save(options, folder), "--num_beams", str(options.engine_beams), "--quiet"]
        tokenizer = AutoTokenizer.from_pretrained(folder / "ours")
        measured = [(contender, Measurements()) for contender in enter(folder)]
        commands = [
            [sys.executable, "-m", "vaswani", "translate", *contender.flags, *flags] for contender, _ in measured
        ]
        for command in commands:  # what is compiled is in its cache from here on
            seconds_to_a_line(command, read_lines(str(folder / "source"))[0])
        for turn in range(1, options.engine_turns + 1):
            for command, (_, measurements) in zip(commands, measured, strict=True):
                measurements.take(command, folder / "source", folder / "output")
            print(f"turn {turn}/{options.engine_turns}", file=sys.stderr, flush=True)
    exact = measured[0][1].outputs
    return [as_record(row_of(contender, measurements, exact, tokenizer)) for contender, measurements in measured]


@dataclass
class Measurements:
    """What was measured of a contender, turn by turn, and what it wrote."""

    starts: list[float] = field(default_factory=list)  # seconds until the first line of a command is there
    seconds: list[float] = field(default_factory=list)  # of a command that translates all of them
    peaks: list[int] = field(default_factory=list)  # bytes, of its largest process
    outputs: list[str] = field(default_factory=list)

    def take(self, command: list[str], source: Path, output: Path) -> None:
        """Take a turn: start the command for a line, and for all."""
        self.starts.append(seconds_to_a_line(command, read_lines(str(source))[0]))
        began = time.perf_counter()
        _, peak = run_and_watch([*command, "--input", str(source), "--output", str(output)])
        self.seconds.append(time.perf_counter() - began)
        self.peaks.append(peak)
        self.outputs = read_lines(str(output))
        output.unlink()


def row_of(
    contender: Contender, measured: Measurements, exact: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> EngineRow:
    """Make a contender's row; rates are without the seconds before the first line, which a command needs once."""
    found, tokens = measured.outputs, sum(map(len, tokenizer(measured.outputs).input_ids))
    working = [whole - start for whole, start in zip(measured.seconds, measured.starts, strict=True)]
    return EngineRow(
        contender.engine,
        contender.precision,
        sentences=Rates.of([len(found) / each for each in working]),
        tokens=Rates.of([tokens / each for each in working]),
        first_line=Rates.of(measured.starts),
        peak_memory=max(measured.peaks) / GIGA,
        chrf=CHRF().corpus_score(found, [exact]).score,
        equal=100 * sum(map(str.__eq__, found, exact)) / len(exact),
    )


def save(options: argparse.Namespace, folder: Path) -> list[str]:
    """Write the model for every engine and the text; return flags that the commands need."""
    if options.engine_model is None:
        config = load_config("base-en-de")
        torch.manual_seed(2017)
        model = VaswaniForConditionalGeneration(config).eval()
        tokenizer, sentence = make_tokenizer(config.vocab_size)
        words, generator = sentence.split(), random.Random(2017)
        text = [" ".join(generator.choices(words, k=8)) for _ in range(SENTENCES)]
    else:
        model, tokenizer = load(options.engine_model, device="cpu", dtype="float32")
        text = read_lines(options.engine_source)
        if not text:
            raise UserError(f"engine_source={options.engine_source!r} has no line to translate")
    for name in ("ours", "marian", "ct2", "ct2-int8", "onnx", "onnx-int8"):
        (folder / name).mkdir()
    model.save_pretrained(folder / "ours")
    tokenizer.save_pretrained(folder / "ours")
    save_as_marian(model, tokenizer, folder / "marian")
    for suffix, quantization in (("", "float32"), ("-int8", "int8")):
        save_for_ctranslate2(model, tokenizer, folder / f"ct2{suffix}", quantization)
        save_for_onnx(model, tokenizer, folder / f"onnx{suffix}", quantization)
    (folder / "source").write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    return ["--max_new_tokens", str(NEW_TOKENS)] if options.engine_model is None else []


def enter(folder: Path) -> list[Contender]:
    """Return all that can translate here; the first is what the others are compared with."""
    model, _ = load(str(folder / "ours"), device="cpu", torch_compile=True)  # warns where nothing can be compiled
    compiles = model.generation_config.compile_config is not None

    def contender(engine: str, precision: str, place: str, *flags: str) -> Contender:
        return Contender(engine, precision, ["--model", str(folder / place), "--device", "cpu", *flags])

    return [
        contender("torch", "float32", "ours", "--dtype", "float32"),
        *([contender("torch", "bfloat16", "ours", "--dtype", "bfloat16")] if multiplies_bfloat16() else []),
        contender("torch", "int8", "ours", "--dtype", "int8"),
        *([contender("torch, compiled", "int8", "ours", "--dtype", "int8", "--torch_compile")] if compiles else []),
        contender("CTranslate2", "float32", "ct2", "--engine", "ctranslate2"),
        contender("CTranslate2", "int8", "ct2-int8", "--engine", "ctranslate2"),
        contender("ONNX Runtime", "float32", "onnx", "--engine", "onnxruntime"),
        contender("ONNX Runtime", "int8", "onnx-int8", "--engine", "onnxruntime"),
        contender("MarianMT of transformers", "float32", "marian", "--dtype", "float32"),
    ]
