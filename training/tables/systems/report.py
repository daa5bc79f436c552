"""Table 2 as it stands: the systems trained here beside the paper's, as Markdown, CSV and a picture."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from training.data.vocabulary import count_types
from training.tables.layout import align, markdown, write_csv
from training.tables.systems.catalogue import BASELINE, PAPER_ROWS, SYSTEMS
from training.tables.systems.plan import Entry, Plan
from training.tables.systems.records import Table, means
from vaswani.pictures.look import LIGHT, MATPLOTLIB
from vaswani.scoring.references import EvaluationSet


# Colour, dash and mark.
STYLES = {
    "recurrent": ("orange", ":", "v"),
    "recurrent-attention": ("green", "--", "^"),
    "convolutional": ("pink", "-.", "s"),
    "transformer": ("blue", "-", "o"),
}

# Where names would hide each other in the picture: alignment and offset.
BESIDE_ITS_POINT = {"ConvS2S, ensemble": ("center", (0, 7)), "GNMT + RL, ensemble": ("right", (6, -15))}


def list_plan(plan: Plan) -> str:
    """Write for a terminal what each system is, and what its training will cost."""
    names = align(["system", "what it is"], [[entry.system.name, entry.system.text] for entry in plan.entries])
    titles = ["system", "parameters", "FLOPs per target token", "updates", "target tokens", "training FLOPs"]
    return f"{names}\n\n{align(titles, map(_cells, plan.entries))}"


def _cells(entry: Entry) -> list[str]:
    cells = [entry.system.name, f"{entry.parameters:,}", f"{entry.flops_per_target_token:.2e}"]
    if entry.steps is None:
        return [*cells, *["by time"] * 3]
    tokens = entry.steps * entry.tokens_per_update
    return [*cells, f"{entry.steps:,}", f"{tokens:,}", f"{entry.flops(entry.steps):.1e}"]


def write_report(plan: Plan, table: Table, text: EvaluationSet, folder: Path, command: str) -> None:
    """Write `table2.md`, `.csv` and `.png` of what has finished."""
    (folder / "table2.md").write_text(write_markdown(plan, table, text, command), encoding="utf-8")
    if table.results:
        write_csv(folder / "table2.csv", [asdict(result) for result in table.results])
        draw(table, folder / "table2.png")


def write_markdown(plan: Plan, table: Table, text: EvaluationSet, command: str) -> str:
    """Write the Markdown: what was run, cost and quality, length, and the paper's table."""
    done, wanted = len(table.results), len(plan.entries) * len(plan.options.seeds)
    parts = ["# Table 2", f"`{command}`", f"{done} of {wanted} runs are finished."]
    if table.results:
        parts += [describe_conditions(plan, table, text), "## Cost", cost(table), "## Quality", quality(table)]
        parts += ["## BLEU by length of the source", by_length(table)]
    parts += ["## The paper's table", papers_table()]
    return "\n\n".join(parts) + "\n"


def describe_conditions(plan: Plan, table: Table, text: EvaluationSet) -> str:
    """Say under which conditions the runs were trained and measured."""
    run = next(run for entry in plan.entries for run in entry.runs if run.is_finished)
    data, options = run.settings.data, plan.options
    factors = ", ".join(f"{factor:g}" for factor in options.learning_rate_factors)
    search = (
        f"The learning rate's factor of each system is the one with the lowest perplexity on validation after "
        f"{options.search_share:.0%} of its updates, of {factors}, and of half or twice the outermost for as long as "
        "that was the best; the cost of the search is shown."
        if len(options.learning_rate_factors) > 1
        else f"The learning rate's factor is {factors} for all."
    )
    signatures = "; ".join(f"`{signature}`" for signature in table.signatures.values())
    return (
        f"Data: {run.text_name}, {data.source_lang} to {data.target_lang}; scored on "
        f"{len(text.references):,} sentences of {text.split}. Vocabulary {count_types(run.settings.model):,}; about "
        f"{run.settings.optimization.max_tokens_per_batch:,} target tokens an update. {search} Seeds "
        f"{', '.join(map(str, options.seeds))}; figures are means over them. FLOPs are counted for sentences of 28 "
        f"tokens. BLEU: {signatures}. p is that of the difference to the Transformer by paired bootstrap, the largest "
        f"of the seeds'. {run.where_and_when}; {options.jobs} runs at a time, translated one after another by beam "
        "search in float32, as the published models do by themselves."
    )


def cost(table: Table) -> str:
    """Write what each system costs."""
    titles = {
        "parameters": ("parameters", "{:,.0f}"),
        "flops_per_target_token": ("FLOPs per target token", "{:.2e}"),
        "learning_rate_factor": ("learning rate factor", "{:g}"),
        "search_flops": ("FLOPs of the search", "{:.1e}"),
        "max_steps": ("updates", "{:,.0f}"),
        "target_tokens": ("target tokens", "{:,.0f}"),
        "training_flops": ("training FLOPs", "{:.1e}"),
        "training_seconds": ("training seconds", "{:,.0f}"),
        "training_tokens_per_second": ("target tokens/s, training", "{:,.0f}"),
        "decoding_tokens_per_second": ("target tokens/s, decoding", "{:,.0f}"),
    }
    return _table(table, titles)


def quality(table: Table) -> str:
    """Write how well each system translates."""
    titles = {
        "perplexity": ("PPL", "{:.2f}"),
        "paper_bleu": ("BLEU (paper's protocol)", "{:.2f}"),
        "paper_minus_baseline": ("less Transformer's", "{:+.2f}"),
        "sacrebleu": ("sacreBLEU", "{:.2f}"),
        "minus_baseline": ("less Transformer's", "{:+.2f}"),
    }
    shown = _shown(table)
    of_seeds = [", ".join(f"{result.sacrebleu:.2f}" for result in table.of(name)) for name in shown]
    p_values = [[value for result in table.of(name) if (value := result.p_value) is not None] for name in shown]
    largest = [f"{max(values):.3f}" if values else "" for values in p_values]
    return _table(table, titles, {"sacreBLEU of each seed": of_seeds, "p": largest})


def _shown(table: Table) -> list[str]:
    return [name for name in SYSTEMS if table.of(name)]


def _table(table: Table, titles: dict[str, tuple[str, str]], more: dict[str, list[str]] | None = None) -> str:
    rows: list[list[str]] = []
    for index, name in enumerate(_shown(table)):
        values: list[tuple[Any, str]] = [(means(table.of(name), key), form) for key, (_, form) in titles.items()]
        cells = ["" if value is None else form.format(value) for value, form in values]
        rows.append([name, *cells, *(column[index] for column in (more or {}).values())])
    return markdown(["system", *(title for title, _ in titles.values()), *(more or {})], rows)


def by_length(table: Table) -> str:
    """Write BLEU by the number of words of the source."""
    titles = ["system", *(f"{part.name} words ({len(part.sentences)})" for part in table.parts)]
    return markdown(titles, [[name, *(f"{bleu:.1f}" for bleu in row)] for name, row in table.bleu_by_length.items()])


def papers_table() -> str:
    """Write Table 2 as the paper prints it."""
    titles = ["system", "BLEU EN-DE", "BLEU EN-FR", "FLOPs EN-DE", "FLOPs EN-FR"]
    forms = ("{}", "{}", "{:.1e}", "{:.1e}")
    rows = []
    for row in PAPER_ROWS:
        values = (row.bleu_en_de, row.bleu_en_fr, row.flops_en_de, row.flops_en_fr)
        cells = ["" if value is None else form.format(value) for value, form in zip(values, forms, strict=True)]
        rows.append([row.name, *cells])
    return markdown(titles, rows)


@matplotlib.rc_context(MATPLOTLIB)
def draw(table: Table, path: Path) -> None:
    """Draw BLEU over training FLOPs, BLEU by length, and the paper's BLEU over its FLOPs."""
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    over_cost, over_length, paper = figure.subplots(1, 3)
    for name in _shown(table):
        points, (color, dashes, marker) = table.curves[name], STYLES[name]
        line = {"color": LIGHT[color], "linestyle": dashes, "marker": marker, "label": name}
        over_cost.plot([point.flops for point in points], [point.bleu for point in points], **line)
        over_length.plot([part.name for part in table.parts], table.bleu_by_length[name], **line)
    over_cost.set(xlabel="training FLOPs", ylabel="sacreBLEU on validation, greedy", title="At equal cost, here")
    over_length.set(xlabel="words of the source", ylabel="sacreBLEU", title="By length of the source, here")
    figure.legend(*over_cost.get_legend_handles_labels(), loc="outside lower center", ncols=len(SYSTEMS))
    for row in PAPER_ROWS:
        if row.bleu_en_de is not None and row.flops_en_de is not None:
            color = STYLES[BASELINE][0] if row.name.startswith("Transformer") else "grey"
            paper.plot(row.flops_en_de, row.bleu_en_de, "o", color=LIGHT[color])
            side, place = BESIDE_ITS_POINT.get(row.name, ("left", (4, 5)))
            at = row.flops_en_de, row.bleu_en_de
            paper.annotate(row.name, at, place, textcoords="offset points", fontsize=8, ha=side)
    paper.set(xscale="log", xlabel="training FLOPs", ylabel="BLEU, newstest2014 EN-DE", title="In the paper (Table 2)")
    paper.margins(0.2)
    figure.savefig(path, dpi=150)
