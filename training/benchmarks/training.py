"""Training speed: our loop against MarianMT of the same architecture, on the same data and machine, in turns.

Every measurement is a process of its own, or two with a core each, so that each has its own peak memory: with two, it
is that of the larger one. The contenders take turns, so that other load on the machine slows all of them alike.
"MarianMT" alone gets our batches, of pairs of equal lengths.
"""

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from training.benchmarks.gpu import MEASURED_RUN
from training.benchmarks.processes import run_and_watch
from training.benchmarks.records import GIGA, Rates, TrainingRow, Turn, TurnResult, as_record
from training.machine import usable_cores
from training.recipe import parse_settings
from training.settings import ROOT, has_configurations
from training.tables.cost import flops_per_target_token
from training.tables.metrics import logged_updates, seconds_of_training
from training.trainer.model import load_config
from vaswani import VaswaniConfig
from vaswani.cli.shared.flags import at_least_one
from vaswani.errors import UserError
from vaswani.models.packing_vaswani import multiplies_bfloat16


RUN = ROOT / "training" / "run.py"
CONTENDERS = "training.benchmarks.contenders"
SMALL = {"model_type": "vaswani", "vocab_size": 8000, "d_model": 256} | {
    f"{stack}_{part}": value
    for stack in ("encoder", "decoder")
    for part, value in {"layers": 3, "ffn_dim": 1024, "attention_heads": 4}.items()
}
# On a GPU, whose graphs for the usual sizes of a batch are recorded in the first quarter of them.
UPDATES_ON_GPU = 600
OURS, OURS_TOGETHER = "ours", "ours, 2 processes"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``train``. The default of a flag that is None depends on the device."""
    data = parser.add_argument_group("train: data and model")
    data.add_argument("--dataset_name", help="a dataset, or 'synthetic': text of WMT-like lengths (default on a GPU)")
    data.add_argument("--dataset_config_name", default="en-de")
    data.add_argument("--config_name", help="as for run.py; default: 3 + 3 layers of 256, vocabulary 8,000")
    data.add_argument("--max_tokens_per_batch", type=at_least_one, help="default: 1,600, on a GPU the paper's 25,000")
    data.add_argument("--max_tokens_per_device", type=at_least_one, default=32_768)
    measuring = parser.add_argument_group("train: measuring")
    measuring.add_argument(
        "--rounds", type=at_least_one, default=3, help="turns that every contender takes (default: %(default)s)"
    )
    measuring.add_argument(
        "--tokens", type=at_least_one, help="targets of a turn; default: 50,000, on a GPU 2,000,000"
    )
    measuring.add_argument(
        "--seconds",
        type=float,
        default=60,
        help="after which a turn of a peer ends in any case (default: %(default)s)",
    )
    measuring.add_argument(
        "--sentences", type=at_least_one, help="a batch of HF's example or Trainer; default: 64, on a GPU 512"
    )


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Let all contenders take their turns and return a row for each, ours first; a peer that fails has none.

    Raises
    ------
    UserError
        If the data is absent, or ours fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        workload = Workload.of(options, Path(folder))
        contenders = workload.contenders()
        precisions = sorted({contender.precision for contender in contenders if contender.precision}, reverse=True)
        peaks: dict[str, list[float]] = {precision: [] for precision in precisions}
        turns: dict[str, list[TurnResult]] = {contender.name: [] for contender in contenders}
        for number in range(1, options.rounds + 1):
            for precision in peaks:
                peaks[precision].append(workload.measure("gemm", precision).rate)
            for contender in list(contenders):
                try:
                    result = contender.take_turn()
                except UserError as error:
                    if contender.name.startswith(OURS):
                        raise
                    say(f"round {number}/{options.rounds}: {contender.name} is left out: {error}")
                    contenders.remove(contender)
                    continue
                turns[contender.name].append(result)
                say(f"round {number}/{options.rounds}: {contender.name}: {result.rate:,.0f} target tokens/s")
    flops = flops_per_target_token(workload.config)
    ours = max(([turn.rate for turn in turns[name]] for name in (OURS, OURS_TOGETHER) if name in turns), key=median)
    rows = [summarize(contender, turns[contender.name], ours, flops, peaks) for contender in contenders]
    for precision, rates in peaks.items():
        in_giga = Rates.of([rate / GIGA for rate in rates])
        rows.append(TrainingRow("matrix product, GFLOP/s", precision=precision, rates=in_giga))
    rows.append(TrainingRow("a target token, GFLOP", rates=Rates.of([flops / GIGA])))
    return [as_record(row) for row in rows]


@dataclass(frozen=True)
class Contender:
    """A row of the table: its precision, "" for the loader, which has no model, and what takes its turns."""

    name: str
    precision: str
    take_turn: Callable[[], TurnResult]


def summarize(
    contender: Contender,
    turns: Sequence[TurnResult],
    ours: Sequence[float],
    flops: float,
    peaks: Mapping[str, Sequence[float]],
) -> TrainingRow:
    """Make a contender's row.

    Parameters
    ----------
    contender : Contender
    turns : sequence of TurnResult
    ours : sequence of float
        Target tokens a second of our training loop, at its best setting, in the same rounds: the ratios are of those.
    flops : float
        Operations for a target token.
    peaks : mapping of str to sequence of float
        FLOP/s that the machine reaches in each precision, in the same rounds. Utilization is the share of it that a
        contender reaches, the median of the rounds.
    """
    rates = Rates.of([turn.rate for turn in turns])
    row = TrainingRow(
        what=contender.name,
        precision=contender.precision,
        rates=rates,
        peak_memory=max(turn.peak_bytes for turn in turns) / GIGA,
    )
    if not contender.precision:  # it has no model
        return row
    ratios = [mine / turn.rate for mine, turn in zip(ours, turns, strict=True)]
    pairs = zip(turns, peaks[contender.precision], strict=True)
    utilization = median(turn.rate * flops / peak for turn, peak in pairs)
    return replace(row, ours_is_times=Rates.of(ratios), utilization=utilization)


@dataclass(frozen=True)
class Workload:
    """The work that is the same for every contender: data, model, and how long a turn is.

    Parameters
    ----------
    folder : Path
        For what is written on the way.
    device : str
        "cpu" or "cuda".
    config : VaswaniConfig
    flags : list of str
        The flags of run.py that name data and model.
    steps : int
        Updates of our loop: four equal parts, of which the first is warm-up.
    tokens : int
        Target tokens that the other contenders measure.
    seconds : float
        After which a turn of theirs ends in any case.
    sentences : int
        In a batch of those contenders that count sentences.
    """

    folder: Path
    device: str
    config: VaswaniConfig
    flags: list[str]
    steps: int
    tokens: int
    seconds: float
    sentences: int

    @classmethod
    def of(cls, options: argparse.Namespace, folder: Path) -> "Workload":
        """Fill in the defaults, and write config and data where the options name none."""
        on_gpu = options.device == "cuda"
        budget = options.max_tokens_per_batch or (25_000 if on_gpu else 1600)
        tokens = options.tokens or (2_000_000 if on_gpu else 50_000)
        if options.config_name is None:
            (folder / "config.json").write_text(json.dumps(SMALL))
        flags = data_flags(options, folder, on_gpu)
        flags += ["--source_lang=en", "--target_lang=de", "--max_eval_samples=2"]
        flags += [f"--config_name={options.config_name or folder}", f"--max_tokens_per_batch={budget}"]
        flags += [f"--max_tokens_per_device={options.max_tokens_per_device}"]
        if not on_gpu:  # as training/recipes/multi30k-en-de.toml has it
            flags += ["--attn_implementation=eager"]
            if options.dataset_name != "synthetic":  # half of which is longer
                flags += ["--max_source_length=64", "--max_target_length=64"]
        config = load_config(parse_settings(flags).model.config_name)
        flags += [f"--vocab_size={config.vocab_size}"]
        return cls(
            folder=folder,
            device=options.device,
            config=config,
            flags=flags,
            steps=max(4 * math.ceil(tokens / budget / 3), UPDATES_ON_GPU if on_gpu else 0),
            tokens=tokens,
            seconds=options.seconds,
            sentences=options.sentences or (512 if on_gpu else 64),
        )

    def contenders(self) -> list[Contender]:
        """Return every contender, in the order of the turns."""
        fast = "bf16" if self.device == "cuda" or multiplies_bfloat16() else "fp32"
        ours = Contender(OURS, fast, lambda: self.measure_ours(fast))
        batched = Contender("MarianMT", fast, lambda: self.measure("batched", fast))
        loader = Contender("our loader alone", "", lambda: self.measure("loader", ""))
        if self.device == "cuda":
            trainer = Contender("MarianMT with Seq2SeqTrainer", fast, lambda: self.measure("trainer", fast))
            return [ours, trainer, batched, loader]
        # Not MarianMT's default attention, but faster on a CPU, so ours uses it too.
        eager = [Contender("MarianMT, eager", fast, lambda: self.measure("batched", fast, "eager"))]
        entered = [ours]
        if usable_cores() > 1:
            entered.append(Contender(OURS_TOGETHER, fast, lambda: self.measure_ours(fast, 2)))
            together = partial(self.measure, "batched", fast, "eager", 2)
            eager.append(Contender("MarianMT, eager, 2 processes", fast, together))
        if fast != "fp32":
            entered.append(Contender("ours in float32", "fp32", lambda: self.measure_ours("fp32")))
        example = Contender("MarianMT as HF's example", "fp32", lambda: self.measure("example", "fp32"))
        return [*entered, *eager, batched, example, loader]

    def measure(self, contender: str, precision: str, attention: str = "sdpa", processes: int = 1) -> TurnResult:
        """Let a contender of `contenders.py` take a turn."""
        turn = Turn(
            contender=contender,
            precision=precision,
            device=self.device,
            flags=self.flags,
            tokens=self.tokens,
            seconds=self.seconds,
            sentences=self.sentences,
            folder=str(self.folder / "trainer"),
            attention=attention,
            processes=processes,
        )
        output, peak_bytes = run_and_watch([*launcher(processes), "-m", CONTENDERS, json.dumps(asdict(turn))])
        return TurnResult(**{"peak_bytes": peak_bytes} | json.loads(output.splitlines()[-1]))

    def measure_ours(self, precision: str, processes: int = 1) -> TurnResult:
        """Train with the real run.py; return the rate that it logged after its warm-up."""
        output_dir = self.folder / "run"
        flags = ["--overwrite_output_dir=true", f"--output_dir={output_dir}", "--eval_steps=0", "--save_steps=0"]
        flags += [f"--max_steps={self.steps}", f"--logging_steps={self.steps // 4}"]
        flags += [f"--mixed_precision={'bf16' if precision == 'bf16' else 'no'}"]
        on_gpu = self.device == "cuda"
        program = ["-c", MEASURED_RUN, str(RUN)] if on_gpu else [str(RUN)]
        output, peak_bytes = run_and_watch([*launcher(processes), *program, *self.flags, *flags])
        return TurnResult(logged_rate(output_dir), int(output.splitlines()[-1]) if on_gpu else peak_bytes)


def launcher(processes: int) -> list[str]:
    """Return the beginning of a command that runs Python in this many processes."""
    together = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return [sys.executable] if processes == 1 else [sys.executable, *together]


def logged_rate(output_dir: Path) -> float:
    """Return the target tokens a second that a run logged after its warm-up, which is the first row."""
    rows = logged_updates(output_dir)[1:]
    return sum(row["target_tokens"] for row in rows) / seconds_of_training(rows)


def data_flags(options: argparse.Namespace, folder: Path, on_gpu: bool) -> list[str]:
    """Return the flags that name the data; WMT-like text is written first where it is wanted."""
    name = options.dataset_name or ("synthetic" if on_gpu else str(ROOT.parent / "shared" / "data" / "multi30k"))
    if name != "synthetic":
        config = [f"--dataset_config_name={options.dataset_config_name}"] if has_configurations(name) else []
        return [f"--dataset_name={name}", *config]
    for split, count in (("train", 200_000), ("validation", 100)):
        write_synthetic_pairs(folder / f"{split}.tsv", count)
    return [f"--train_file={folder / 'train.tsv'}", f"--validation_file={folder / 'validation.tsv'}"]


def write_synthetic_pairs(path: Path, count: int) -> None:
    """Write pairs whose lengths are spread as WMT14's are, of as many types as its vocabulary of 37,000 needs."""
    generator = random.Random(2017)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(generator.choices(letters, k=generator.randint(2, 9))) for _ in range(60_000)]
    cumulative = list(accumulate(1 / (rank + 10) for rank in range(1, len(words) + 1)))  # Zipf's law
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            length = min(100, max(1, round(generator.lognormvariate(2.95, 0.65))))
            other = max(1, round(length * generator.uniform(0.8, 1.2)))
            sides = (
                " ".join(generator.choices(words, cum_weights=cumulative, k=number)) for number in (length, other)
            )
            file.write("\t".join(sides) + "\n")


def say(text: str) -> None:
    """Show progress on standard error, apart from the table."""
    print(text, file=sys.stderr, flush=True)
