"""How soon it starts: from the start of a process to its first line, beside MarianMT of the same sizes.

Every measurement is a process of its own, in turns; the first turn only warms the disk's cache up. Both write as many
tokens, though not the same ones: Marian makes its own positions when it is loaded.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from training.benchmarks.records import Rates, StartRow, as_record, take_turns
from training.settings import ROOT
from training.trainer.model import load_config
from vaswani import VaswaniForConditionalGeneration
from vaswani.cli.shared.flags import at_least_one
from vaswani.errors import UserError
from vaswani.interop.marian import to_marian
from vaswani.tokenization import train_tokenizer


# What somebody writes who translates lines with MarianMT.
MARIAN = """
import sys
from transformers import MarianMTModel, PreTrainedTokenizerFast
tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
model = MarianMTModel.from_pretrained(sys.argv[1]).to(sys.argv[2]).eval()
for line in sys.stdin:
    inputs = tokenizer([line.strip()], return_tensors="pt").to(model.device)
    translations = model.generate(**inputs, num_beams=1, max_new_tokens=int(sys.argv[3]))
    print(*tokenizer.batch_decode(translations, skip_special_tokens=True), flush=True)
"""
NEW_TOKENS = 10


class Contender(NamedTuple):
    """A process: what it is called, its command, and the place in the list of the one that it is compared with."""

    what: str
    command: list[str]
    ours: int


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``start``."""
    group = parser.add_argument_group("start")
    group.add_argument(
        "--starts",
        type=at_least_one,
        default=5,
        help="times that each starts, after one to warm up (default: %(default)s)",
    )
    group.add_argument(
        "--start_config",
        default="base-en-de",
        help="a folder of hub_configs/, or one with a config.json (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start everything in turns, and return a row for each."""
    with tempfile.TemporaryDirectory() as folder:
        sentence = save_models(options.start_config, Path(folder))
        contenders = enter(Path(folder), options.device)
        starts = [partial(seconds_to_a_line, contender.command, sentence) for contender in contenders]
        spreads = list(map(Rates.of, take_turns(starts, options.starts)))
    return [
        as_record(
            StartRow(contender.what, **asdict(spread), times_ours=spread.median / spreads[contender.ours].median)
        )
        for contender, spread in zip(contenders, spreads, strict=True)
    ]


def enter(folder: Path, device: str) -> list[Contender]:
    """Return all that is started; each prints a line."""
    python = sys.executable
    ours = [python, "-m", "vaswani", "translate", "--model", str(folder / "ours"), "--device", device, "--quiet"]
    ours += ["--num_beams", "1", "--max_new_tokens", str(NEW_TOKENS)]

    def importing(line: str) -> list[str]:
        return [python, "-c", f"{line}; print()"]

    return [
        Contender("vaswani translate", ours, 0),
        Contender("MarianMT", [python, "-c", MARIAN, str(folder / "marian"), device, str(NEW_TOKENS)], 0),
        Contender("import vaswani", importing("import vaswani"), 2),
        Contender("import transformers", importing("import transformers"), 2),
        Contender("our model imported", importing("from vaswani import VaswaniForConditionalGeneration"), 4),
        Contender("MarianMTModel imported", importing("from transformers import MarianMTModel"), 4),
        Contender("torch imported", importing("import torch"), 4),
        Contender("vaswani translate --help", [python, "-m", "vaswani", "translate", "--help"], 6),
    ]


def save_models(name: str, folder: Path) -> str:
    """Save a model of random weights as `ours` and as `marian`, with one tokenizer, and return a sentence."""
    config = load_config(name)
    torch.manual_seed(2017)
    model = VaswaniForConditionalGeneration(config).eval()
    tokenizer, sentence = make_tokenizer(config.vocab_size)
    for place, saved in (("ours", model), ("marian", to_marian(model))):
        saved.save_pretrained(folder / place)
        tokenizer.save_pretrained(folder / place)
    return sentence


def make_tokenizer(vocab_size: int) -> tuple[PreTrainedTokenizerFast, str]:
    """Train a tokenizer of `vocab_size` types on random words, and return a sentence of these, too."""
    generator = random.Random(2017)
    words = ["".join(generator.choices(ascii_lowercase, k=generator.randrange(3, 12))) for _ in range(vocab_size)]
    return train_tokenizer([" ".join(words)], vocab_size), " ".join(words[:10])


def seconds_to_a_line(command: list[str], sentence: str) -> float:
    """Start a process that may read a sentence, and return the time until it has written a line.

    Raises
    ------
    UserError
        If it ends without one, with the last line that it wrote to standard error.
    """
    with tempfile.TemporaryFile("w+") as source, tempfile.TemporaryFile("w+") as errors:
        source.write(f"{sentence}\n")
        source.seek(0)
        started = time.perf_counter()
        process = subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - started
        process.communicate()
        if not line or process.returncode:
            errors.seek(0)
            words = [said for said in errors.read().splitlines() if said.strip()] or [f"exit {process.returncode}"]
            raise UserError(f"a measurement failed: {words[-1].removeprefix('error: ')}")
    return seconds
