"""How much memory training and translating take: peaks of whole processes, and how they grow.

Training is ``training/run.py``, translating is ``vaswani translate``, on a CPU. Models have random weights, so that
translations become as long as they may: the source's length + 50. All sentences have the same length.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from training.benchmarks.processes import run_and_watch
from training.benchmarks.records import GIGA, MemoryRow, as_record
from training.benchmarks.training import RUN, SMALL, say
from training.reports.curves import as_svg
from training.tables.cost import count_parameters
from training.trainer.model import load_config
from vaswani import VaswaniConfig
from vaswani.memory import Batch, predict_peak
from vaswani.models.decoding_vaswani import PAPERS_DECODING
from vaswani.pictures.look import DASHES, LIGHT, MATPLOTLIB, SERIES, stand_alone


THOUSAND = 1000
UPDATES = 2  # the second has Adam's moments beside the gradients


@dataclass(frozen=True)
class Point:
    """What is measured.

    Parameters
    ----------
    what : str
        "train" or "translate".
    model : str
        "small", 3 + 3 layers of 256, or a folder of hub_configs/.
    tokens : int
        Of a batch: `max_tokens_per_batch` or `max_batch_tokens`.
    length : int
        Tokens of every source, and in training of every target.
    vocabulary : int
        V.
    beams : int or None
        Hypotheses, of translating.
    """

    what: str
    model: str
    tokens: int
    length: int
    vocabulary: int
    beams: int | None = None


TRANSLATING = Point("translate", "small", tokens=2048, length=32, vocabulary=8000, beams=4)
TRAINING = Point("train", "small", tokens=2000, length=25, vocabulary=8000)
DEMO, BASE = {"model": "demo", "vocabulary": 1500}, {"model": "base-en-de", "vocabulary": 37_000}
# Lines of the picture: what varies, and its values, for each point from which it is varied.
LINES = {
    "tokens": [
        (TRANSLATING, (512, 2048, 8192)),
        (replace(TRANSLATING, **BASE), (256, 1024)),
        (TRAINING, (1000, 2000, 4000)),
        (replace(TRAINING, **DEMO), (1000, 4000)),
        (replace(TRAINING, **BASE), (500, 1500)),
    ],
    "beams": [(TRANSLATING, (1, 4, 16))],
    "length": [(TRANSLATING, (8, 32, 128, 512)), (TRAINING, (25, 200))],
    "vocabulary": [(TRANSLATING, (2000, 8000, 32_000)), (TRAINING, (8000, 32_000))],
}
TITLES = {
    "tokens": "tokens of a batch",
    "beams": "beams",
    "length": "tokens of a sentence; batches stay as large",
    "vocabulary": "types of the vocabulary",
}
Peaks = dict[Point, float]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``memory``."""
    group = parser.add_argument_group("memory")
    group.add_argument("--picture", metavar="FILE.svg", type=Path, help="draw there how peaks grow")


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every point, draw if that is asked for, and return a row for each point and for each line.

    Raises
    ------
    UserError
        If a measurement fails.
    """
    points = list(dict.fromkeys(point for axis in LINES for line in LINES[axis] for point in points_of(axis, *line)))
    peaks: Peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, point in enumerate(points, start=1):
            peaks[point] = measure(point, Path(folder)) / GIGA
            say(f"{number}/{len(points)}: {point}: {peaks[point]:.2f} GB")
    if options.picture is not None:
        options.picture.write_text(stand_alone(as_svg(draw(peaks), "memory")), encoding="utf-8")
    rows = [MemoryRow(**asdict(point), peak=peak, estimate=estimate(point)) for point, peak in peaks.items()]
    return [as_record(row) for row in [*rows, *fitted_rows(peaks)]]


def points_of(axis: str, base: Point, values: Sequence[int]) -> list[Point]:
    """Return the points of a line."""
    return [replace(base, **{axis: value}) for value in values]


def config_of(point: Point) -> VaswaniConfig:
    """Return a model's config, with the vocabulary of the point."""
    config = VaswaniConfig(**SMALL) if point.model == "small" else load_config(point.model)
    config.vocab_size = point.vocabulary
    config.pad_token_id = config.decoder_start_token_id = point.vocabulary - 1
    return config


def measure(point: Point, folder: Path) -> int:
    """Return the peak of a process that trains or translates, in bytes."""
    model = model_folder(point, folder)
    sentences = UPDATES * point.tokens // point.length + 1
    text = list(random_sentences(point, 2 * sentences))
    if point.what == "translate":
        (folder / "source.txt").write_text("\n".join(text[: max(1, point.tokens // point.length)]))
        command = [sys.executable, "-m", "vaswani", "translate", f"--model={model}", f"--num_beams={point.beams}"]
        command += [f"--max_batch_tokens={point.tokens}", f"--input={folder / 'source.txt'}", "--device=cpu"]
        # More workers would share the batch out.
        return run_and_watch([*command, f"--output={folder / 'output.txt'}", "--workers=1", "--quiet"])[1]
    pairs = [f"{source}\t{target}\n" for source, target in zip(text[::2], text[1::2], strict=True)]
    (folder / "train.tsv").write_text("".join(pairs))
    (folder / "validation.tsv").write_text(pairs[0])
    flags = [f"--{split}_file={folder / split}.tsv" for split in ("train", "validation")]
    flags += ["--source_lang=en", "--target_lang=de", f"--config_name={model}", f"--tokenizer_name={model}"]
    flags += [f"--max_tokens_per_batch={point.tokens}", "--attn_implementation=eager"]
    flags += [f"--max_steps={UPDATES}", "--save_steps=0", "--eval_steps=0", "--mixed_precision=bf16"]
    flags += [f"--output_dir={folder / 'run'}", "--overwrite_output_dir=true"]
    return run_and_watch([sys.executable, str(RUN), *flags])[1]


def random_sentences(point: Point, count: int) -> Iterator[str]:
    """Yield sentences of the point's length, ``</s>`` included."""
    generator = random.Random(2017)
    for _ in range(count):
        yield " ".join(f"w{generator.randrange(2, point.vocabulary - 1)}" for _ in range(point.length - 1))


def model_folder(point: Point, parent: Path) -> Path:
    """Return a folder with a model of random weights, and a tokenizer that knows words w2, w3, ...

    It never writes ``</s>``, so that all translations become as long as they may.
    """
    folder = parent / f"{point.model}-{point.vocabulary}"
    if not folder.exists():
        model = AutoModelForSeq2SeqLM.from_config(config_of(point))
        never = [model.config.eos_token_id, model.config.pad_token_id]
        model.generation_config.update(**PAPERS_DECODING, suppress_tokens=never, allow_custom_entries=True)
        model.save_pretrained(folder)
        names = ["</s>", "<unk>", *(f"w{token}" for token in range(2, point.vocabulary - 1)), "<pad>"]
        words = Tokenizer(WordLevel({name: token for token, name in enumerate(names)}, unk_token="<unk>"))
        words.pre_tokenizer = WhitespaceSplit()
        words.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
        kinds = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        PreTrainedTokenizerFast(tokenizer_object=words, **kinds).save_pretrained(folder)
    return folder


def estimate(point: Point) -> float | None:
    """Return what `vaswani.memory` estimates that translating takes, in GB."""
    if point.beams is None:
        return None
    config = config_of(point)
    sentences = max(1, point.tokens // point.length)
    batch = Batch(sentences, point.length, point.length + PAPERS_DECODING["extra_target_tokens"], point.beams)
    return predict_peak(config, [batch], 4 * count_parameters(config), torch.float32, torch.float32) / GIGA


def fit(axis: str, base: Point, values: Sequence[int], peaks: Peaks) -> tuple[float, float, Callable[[float], float]]:
    """Return a and b of the least-squares line a + b x, and that function of the value.

    x is the value itself, but of translating sentences of some length its inverse: in batches of as many tokens, there
    are fewer hypotheses of long sentences.
    """

    def x(value: float) -> float:
        return 1 / value if is_inverse(axis, base) else value

    line = statistics.linear_regression(
        [x(value) for value in values], [peaks[point] for point in points_of(axis, base, values)]
    )
    return line.intercept, line.slope, lambda value: line.intercept + line.slope * x(value)


def is_inverse(axis: str, base: Point) -> bool:
    """Tell whether a line is of translating sentences of some length."""
    return axis == "length" and base.what == "translate"


def fitted_rows(peaks: Peaks) -> Iterator[MemoryRow]:
    """Yield for each line how it grows."""
    for axis, lines in LINES.items():
        for base, values in lines:
            low, slope, _ = fit(axis, base, values, peaks)
            growth = f"{slope:.3g} {axis}" if values[-1] < THOUSAND else f"{THOUSAND * slope:.3g} {axis} / 1,000"
            if is_inverse(axis, base):
                growth = f"{slope:.3g} / {axis}"
            yield MemoryRow(f"fit of {base.what}", base.model, growth=f"{low:.2f} + {growth}")


@matplotlib.rc_context(MATPLOTLIB)
def draw(peaks: Peaks) -> Figure:
    """Draw the points, and the fitted lines through them, over each of the axes."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    names = list(dict.fromkeys(label(base) for lines in LINES.values() for base, _ in lines))
    for axes, (axis, lines) in zip(figure.subplots(2, 2).flat, LINES.items(), strict=True):
        for base, values in lines:
            number = names.index(label(base))
            color = LIGHT[SERIES[number]]
            _, _, function = fit(axis, base, values, peaks)
            between = [values[0] * (values[-1] / values[0]) ** (step / 60) for step in range(61)]
            axes.plot(values, [peaks[point] for point in points_of(axis, base, values)], "os^Dv"[number], color=color)
            axes.plot(between, list(map(function, between)), DASHES[number % len(DASHES)], color=color)
        axes.set(xlabel=TITLES[axis], ylabel="peak, GB", xscale="log" if axis == "length" else "linear")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    first = figure.axes[0]
    for number, name in enumerate(names):
        first.plot([], [], "os^Dv"[number], ls=DASHES[number % len(DASHES)], color=LIGHT[SERIES[number]], label=name)
    figure.suptitle("Peak memory of a process: measured (marks) and fitted (lines)", fontsize=14)
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def label(point: Point) -> str:
    """Name a line."""
    return f"{'translating' if point.beams else 'training'}, {point.model}"
