"""Table 3 as it stands: the finished rows beside the paper's, as Markdown, CSV and a picture."""

import csv
import itertools
import statistics
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from training.tables.cost import count_parameters, flops_per_target_token, papers_training_flops
from training.tables.layout import markdown
from training.tables.rows import ROWS, SERIES, Row, scale_config
from training.tables.sweep import Run, read_metrics


PAPERS_VOCABULARY = 40_960
MEASURES = {"perplexity": -1, "bleu": 1}  # and in which direction it improves


def describe(row: Row, scale: float, run: Run) -> dict[str, Any]:
    """Say what a row is and costs, and what the paper reports for it, in numbers."""
    config = scale_config(row.config, scale)
    config.vocab_size = run.settings.vocab_size
    key_width = config.head_dim or config.d_model // config.encoder_attention_heads
    flops = flops_per_target_token(config)
    settings = run.settings
    return {
        "row": row.name,
        "config_name": row.config_name,
        "layers": config.encoder_layers,
        "d_model": config.d_model,
        "d_ff": config.encoder_ffn_dim,
        "heads": config.encoder_attention_heads,
        "d_k": key_width,
        "d_v": config.v_head_dim or key_width,
        "positions": config.position_embedding_type,
        "dropout": config.dropout,
        "label_smoothing": settings.label_smoothing,
        "max_steps": settings.max_steps,
        "target_tokens": settings.max_steps * settings.max_tokens_per_batch,
        "vocab_size": config.vocab_size,
        "parameters": count_parameters(config),
        "parameters_with_40960_types": count_parameters(config, PAPERS_VOCABULARY) if scale == 1 else None,
        "paper_parameters": None if row.parameters is None else row.parameters * 10**6,
        "flops_per_target_token": flops,
        "training_flops": flops * settings.max_steps * settings.max_tokens_per_batch,
        "paper_training_flops": None if row.hours is None else papers_training_flops(row.hours),
        "paper_perplexity": row.perplexity,
        "paper_bleu": row.bleu,
    }


def measure(run: Run) -> dict[str, Any]:
    """Return what a finished run measured on its validation split."""
    metrics = read_metrics(run.directory)
    final = [row for row in metrics if row.get("split") == "validation"][-1]
    logged = [row for row in metrics if "target_tokens_per_second" in row]
    rates = [row["target_tokens_per_second"] for row in logged]
    return {
        "perplexity": final["perplexity"],
        # The paper's protocol where its tokenizer knows the language.
        "bleu": round(final["sacrebleu"] if final["paper_bleu"] is None else final["paper_bleu"], 2),
        "bleu_signature": final["paper_bleu_signature"] or final["sacrebleu_signature"],
        "sacrebleu": final["sacrebleu"],
        "sacrebleu_signature": final["sacrebleu_signature"],
        "decoding": final["decoding"],
        "sentences": final["sentences"],
        "trained_target_tokens": sum(row["target_tokens"] for row in logged),
        "tokens_per_second": statistics.median(rates),
    }


def add_differences(rows: Sequence[dict[str, Any]]) -> None:
    """Add to each row how far it is from its base, and how far the paper's row is from the paper's."""
    base = next((row for row in rows if row["row"] == "base"), {})
    for row in rows:
        for name in MEASURES:
            is_known = name in row and name in base
            row[f"{name}_minus_base"] = round(row[name] - base[name], 3) if is_known else None
            paper = getattr(ROWS[row["row"]], name) - getattr(ROWS["base"], name)
            row[f"paper_{name}_minus_base"] = round(paper, 2)


def orderings(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Compare, within what the paper varies together, which of two rows is better here and there.

    Rows that the paper prints as equal are left out.
    """
    found = {row["row"]: row for row in rows if "perplexity" in row}
    answers = []
    for title, names in SERIES.items():
        for measure_name, sign in MEASURES.items():
            present = [name for name in names if name in found]
            same, other = 0, []
            for first, second in itertools.combinations(present, 2):
                paper = sign * (getattr(ROWS[first], measure_name) - getattr(ROWS[second], measure_name))
                here = sign * (found[first][measure_name] - found[second][measure_name])
                if paper == 0:
                    continue
                same += paper * here > 0
                if paper * here <= 0:
                    better, worse = (first, second) if paper > 0 else (second, first)
                    other.append(f"{better} before {worse}")
            if same or other:
                answers.append(
                    {
                        "series": title,
                        "by": {"perplexity": "perplexity", "bleu": "BLEU"}[measure_name],
                        "pairs ordered as in the paper": f"{same} of {same + len(other)}",
                        "paper's order, not here": ", ".join(other),
                    }
                )
    return answers


# Title and format of each column, in the two tables that a row is spread over.
ARCHITECTURE = {
    "row": ("row", "{}"),
    "layers": ("N", "{}"),
    "d_model": ("d_model", "{}"),
    "d_ff": ("d_ff", "{}"),
    "heads": ("h", "{}"),
    "d_k": ("d_k", "{}"),
    "d_v": ("d_v", "{}"),
    "positions": ("positions", "{}"),
    "dropout": ("P_drop", "{}"),
    "parameters": ("parameters", "{:,}"),
    "parameters_with_40960_types": ("parameters with\n40,960 types", "{:,}"),
    "paper_parameters": ("parameters\n(paper)", "{:,}"),
}
COST_AND_RESULTS = {
    "row": ("row", "{}"),
    "label_smoothing": ("eps_ls", "{}"),
    "max_steps": ("updates", "{:,}"),
    "flops_per_target_token": ("FLOPs per\ntarget token", "{:.2e}"),
    "training_flops": ("training\nFLOPs", "{:.1e}"),
    "paper_training_flops": ("training FLOPs\n(paper)", "{:.1e}"),
    "perplexity": ("PPL", "{:.2f}"),
    "paper_perplexity": ("PPL\n(paper)", "{:.2f}"),
    "perplexity_minus_base": ("PPL - base", "{:+.2f}"),
    "paper_perplexity_minus_base": ("PPL - base\n(paper)", "{:+.2f}"),
    "bleu": ("BLEU", "{:.1f}"),
    "paper_bleu": ("BLEU\n(paper)", "{:.1f}"),
    "bleu_minus_base": ("BLEU - base", "{:+.1f}"),
    "paper_bleu_minus_base": ("BLEU - base\n(paper)", "{:+.1f}"),
    "tokens_per_second": ("target\ntokens/s", "{:,.0f}"),
}


def tables(rows: Sequence[dict[str, Any]], layout: Callable[[Sequence[str], Iterable[Sequence[str]]], str]) -> str:
    """Write rows of `describe`, measured or not, as two tables under each other: what they are, and what came of it.

    Parameters
    ----------
    rows : sequence of dict
    layout : callable
        Makes a table of titles and cells, such as `layout.align`. Columns that are empty in all rows are left out.
    """
    texts = []
    for columns in (ARCHITECTURE, COST_AND_RESULTS):
        shown = {name: column for name, column in columns.items() if any(row.get(name) is not None for row in rows)}
        cells = [
            ["" if row.get(name) is None else form.format(row[name]) for name, (_, form) in shown.items()]
            for row in rows
        ]
        texts.append(layout([title for title, _ in shown.values()], cells))
    return "\n\n".join(texts)


def write_report(rows: list[dict[str, Any]], runs: Sequence[Run], folder: Path, command: str) -> None:
    """Write `table3.md`, `.csv` and `.png` from the rows of `describe` and what finished runs measured."""
    rows = [dict(row) for row in rows]
    finished = [run for run in runs if run.is_finished]
    for row, run in zip(rows, runs, strict=True):
        if run in finished:
            row |= measure(run)
    add_differences(rows)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "table3.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    (folder / "table3.md").write_text(text_of(rows, finished, command), encoding="utf-8")
    draw(rows, folder / "table3.png")


def text_of(rows: Sequence[dict[str, Any]], finished: Sequence[Run], command: str) -> str:
    """Write the Markdown: what was run, the table, the orderings."""
    lines = ["# Table 3", "", f"`{command}`", "", f"{len(finished)} of {len(rows)} rows are finished."]
    if finished:
        settings, measured = finished[0].settings, next(row for row in rows if "perplexity" in row)
        run = tomllib.loads((finished[0].directory / "recipe.toml").read_text(encoding="utf-8"))["run"]
        data = settings.dataset_name or ", ".join(settings.train_file or [])
        lines += [
            "",
            f"Data: {Path(data).name} {settings.dataset_config_name or ''}, {settings.source_lang} to "
            f"{settings.target_lang}; validation of {measured['sentences']:,} sentences. About "
            f"{settings.max_tokens_per_batch:,} target tokens an update, vocabulary {settings.vocab_size:,}, seed "
            f"{settings.seed}. A row had {run['hardware']}; {run['precision']}, torch {run['torch']}, {run['date']}.",
            "",
            "PPL is of a word piece, teacher-forced, unsmoothed; BLEU "
            f"`{measured['bleu_signature']}`, {measured['decoding']}, no checkpoints averaged. The paper's are "
            "newstest2013's. tokens/s is of training, while as many rows as the command says shared the machine.",
        ]
    lines += ["", tables(rows, markdown), ""]
    answers = orderings(rows)
    if answers:
        lines.append(markdown(list(answers[0]), (answer.values() for answer in answers)))
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw how far each finished row is from its base, beside the paper's."""
    import matplotlib.figure

    rows = [row for row in rows if row.get("perplexity_minus_base") is not None and row["row"] != "base"]
    figure = matplotlib.figure.Figure(figsize=(10, 1.5 + 0.35 * len(rows)), layout="constrained")
    for axes, (name, title) in zip(
        figure.subplots(1, 2, sharey=True), {"perplexity": "perplexity", "bleu": "BLEU"}.items(), strict=True
    ):
        places = range(len(rows))
        for offset, prefix, label, color in ((-0.2, "paper_", "paper", "0.7"), (0.2, "", "here", "tab:blue")):
            values = [row[f"{prefix}{name}_minus_base"] for row in rows]
            axes.barh([place + offset for place in places], values, height=0.38, label=label, color=color)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(list(places), [row["row"] for row in rows])
        axes.set_xlabel(f"{title}, difference to base ({'lower' if MEASURES[name] < 0 else 'higher'} is better)")
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
    figure.axes[0].invert_yaxis()
    figure.axes[0].legend()
    figure.savefig(path, dpi=150)
