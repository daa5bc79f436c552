"""The report on runs: one page that needs nothing else, and its drawings as files."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from training.reports.curves import as_svg, draw_by_length, draw_curves, draw_lengths
from training.reports.records import RunRecord
from training.reports.sentences import extremes, through_training
from training.trainer.logbook import as_time
from vaswani.pictures.look import css, follow_the_theme, stand_alone


TEMPLATE = Path(__file__).parent / "page.html"
SPLITS = ("test", "validation")  # the first that there is has its sentences shown
SCORES = {
    "sacrebleu": "sacreBLEU",
    "sacrebleu_lowercased": "sacreBLEU, lowercased",
    "chrf": "chrF",
    "paper_bleu": "BLEU by the paper's protocol",
    "bracketing_f1": "labelled F1 (EVALB)",
    "tagging_accuracy": "tagging accuracy (EVALB), %",
    "exact_match": "equal to the reference, %",
    "nll": "negative log-likelihood, nats a token",
    "perplexity": "perplexity of a token",
    "decoding": "search",
}
ABOUT_COST = (
    "Time is that of the updates, without evaluations and checkpoints. FLOPs are those of matrix products, forward "
    "and backward, counted for pairs of 28 tokens. The paper's Table 2 has 3.3e18 for its base model and 2.3e19 for "
    "the big one."
)


def write_report(runs: Sequence[RunRecord], path: Path) -> None:
    """Write the page, and beside it a folder of its name with each drawing as SVG and PNG.

    Parameters
    ----------
    runs : sequence of RunRecord
        Drawn over one another. The sentences are those of the first.
    path : Path
        Of the page: FILE.html.
    """
    curves, lengths = draw(runs)
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    shown: dict[str, list[str]] = {"curves": [], "lengths": []}
    for part, figures in (("curves", curves), ("lengths", lengths)):
        for name, figure in figures.items():
            svg = as_svg(figure, f"{name} of {', '.join(run.name for run in runs)}")
            (folder / f"{name}.svg").write_text(stand_alone(svg), encoding="utf-8")
            figure.savefig(folder / f"{name}.png", dpi=150)
            shown[part].append(follow_the_theme(svg))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    path.write_text(template.render(**shown, **describe(runs)), encoding="utf-8")


def draw(runs: Sequence[RunRecord]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw the curves, and what goes by length."""
    by_length = {"training-lengths": draw_lengths(runs[0].lengths)}
    by_length |= {f"{split}-by-length": draw_by_length(runs, split) for split in reversed(SPLITS)}
    return draw_curves(runs), {name: figure for name, figure in by_length.items() if figure is not None}


def describe(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what the page says in words and numbers."""
    first = runs[0]
    outputs = {split: first.outputs(split) for split in SPLITS}
    split = next((split for split in SPLITS if outputs[split]), "")
    worst, best = extremes(outputs[split][-1]) if split else ([], [])
    samples = through_training(outputs["validation"])
    settings = table_of([describe_settings(run) for run in runs])
    differing = sum(len(set(cells)) > 1 for _, cells in settings)
    contents = [("cost", "Results and cost"), ("curves", "Through training"), ("lengths", "By length")]
    contents += [("samples", "Sentences through training")] * bool(samples)
    contents += [("worst", "The worst"), ("best", "The best")] * bool(worst)
    return {
        "title": f"Training of {' and '.join(run.name for run in runs)}",
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "css": css(),
        "names": [run.name for run in runs],
        "languages": [
            first.recipe.get("source_lang", ""),
            "" if first.is_parser else first.recipe.get("target_lang", ""),
        ],
        "progress": [describe_progress(run) for run in runs],
        "facts": table_of([describe_cost(run) for run in runs]),
        "about_cost": ABOUT_COST,
        "split": split,
        "worst": worst,
        "best": best,
        "samples": samples,
        "settings": sorted(settings, key=lambda row: len(set(row[1])) == 1),
        "settings_summary": f"{len(settings)} settings and facts"
        + (f", the {differing} that differ first" if len(runs) > 1 else ""),
        "contents": [*contents, ("settings", "Settings")],
    }


def describe_progress(run: RunRecord) -> dict[str, Any]:
    """Say how far a run is."""
    share = run.step / max(1, run.max_steps)
    said = f"{run.name}: {run.step:,} of {run.max_steps:,} updates ({share:.0%})"
    if run.is_finished:
        said = f"{run.name} is finished after {run.step:,} updates"
    elif run.seconds_left is not None:
        said += f", about {as_time(run.seconds_left)} of training left at its rate"
    logged = time.strftime("%Y-%m-%d %H:%M", time.localtime((run.directory / "metrics.jsonl").stat().st_mtime))
    said += f"; last logged {logged}"
    if run.unreadable:
        said += f"; {run.unreadable} line(s) of its metrics.jsonl are not whole and were left out"
    return {"said": said + ".", "share": f"{share:.4f}", "is_finished": run.is_finished}


def describe_cost(run: RunRecord) -> dict[str, str]:
    """Return results, and what they cost."""
    facts = {"from, to": ", ".join(run.languages)}
    for split in reversed(SPLITS):
        rows = [row for row in run.evaluations if row["split"] == split]
        last = rows[-1] if rows else {}
        facts |= {f"{split}: {text}": f"{last[key]}" for key, text in SCORES.items() if last.get(key) is not None}
    facts["updates"] = f"{run.step:,}"
    facts["skipped updates"] = f"{max((row['skipped_updates'] for row in run.updates), default=0):,}"
    facts["target tokens"] = f"{run.target_tokens:,}"
    facts["time of training"] = as_time(run.seconds)
    facts["target tokens a second"] = f"{run.target_tokens / run.seconds:,.0f}" if run.seconds else ""
    facts["training FLOPs"] = "" if run.flops is None else f"{run.flops:.2e}"
    return facts


def describe_settings(run: RunRecord) -> dict[str, str]:
    """Return all settings, then versions, hardware and date."""
    noted = run.recipe.get("run", {})
    return {name: f"{value}" for name, value in (run.recipe | noted).items() if name != "run"}


def table_of(columns: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """Return rows from columns: each name that one of them has, and all their values."""
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [column.get(name, "") for column in columns]) for name in names]
