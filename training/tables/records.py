"""The facts of a row of Table 3: its model and cost, the figures that its run measured, its distance from base.

The names of the fields are the keys of ``table3.py --list --json`` and the columns of ``table3.csv``.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from training.data.vocabulary import count_types
from training.tables.cost import count_parameters, flops_per_target_token, papers_training_flops
from training.tables.metrics import logged_evaluations, logged_updates
from training.tables.rows import ROWS, Row
from training.tables.scaling import scale_config
from training.tables.sweep import Run


PAPERS_VOCABULARY = 40_960


@dataclass(frozen=True)
class Description:
    """The model and the cost of a row, and the paper's figures for it.

    `target_tokens` are those of the whole training. `paper_parameters` and `paper_training_flops` are None where the
    paper prints none, `parameters_with_40960_types` where the model is scaled.
    """

    row: str
    config_name: str
    layers: int
    d_model: int
    d_ff: int
    heads: int
    d_k: int
    d_v: int
    positions: str
    dropout: float
    label_smoothing: float
    max_steps: int
    target_tokens: int
    vocab_size: int
    parameters: int
    parameters_with_40960_types: int | None
    paper_parameters: int | None
    flops_per_target_token: float
    training_flops: float
    paper_training_flops: float | None
    paper_perplexity: float
    paper_bleu: float


@dataclass(frozen=True)
class Measurement:
    """What the finished runs of a row measured on their validation split: means over seeds, the median of their speed.

    The spreads say how far the best and the worst seed are apart; they are None where there is one.
    """

    seeds: int
    perplexity: float
    perplexity_spread: float | None
    bleu: float
    bleu_spread: float | None
    bleu_signature: str
    sacrebleu: float
    sacrebleu_signature: str
    decoding: str
    sentences: int
    trained_target_tokens: int
    tokens_per_second: float


@dataclass(frozen=True)
class Differences:
    """How far a row is from base: here, None unless both are finished, and in the paper."""

    perplexity_minus_base: float | None
    paper_perplexity_minus_base: float
    bleu_minus_base: float | None
    paper_bleu_minus_base: float


@dataclass(frozen=True)
class ReportRow:
    """A row of the report; `measurement` is None until one of its runs has finished."""

    description: Description
    measurement: Measurement | None
    differences: Differences

    @property
    def name(self) -> str:
        """The row's name in Table 3."""
        return self.description.row

    def record(self) -> dict[str, Any]:
        """Return its columns in their order, without those that were not measured."""
        measured = {} if self.measurement is None else asdict(self.measurement)
        return asdict(self.description) | measured | asdict(self.differences)


def describe_row(row: Row, scale: float, run: Run) -> Description:
    """Say what a row is and costs, and what the paper reports for it, in numbers."""
    settings = run.settings
    config = scale_config(row.config, scale)
    config.vocab_size = count_types(settings.model)
    key_width = config.head_dim or config.d_model // config.encoder_attention_heads
    target_tokens = settings.optimization.max_steps * settings.optimization.max_tokens_per_batch
    flops = flops_per_target_token(config)
    return Description(
        row=row.name,
        config_name=row.config_name,
        layers=config.encoder_layers,
        d_model=config.d_model,
        d_ff=config.encoder_ffn_dim,
        heads=config.encoder_attention_heads,
        d_k=key_width,
        d_v=config.v_head_dim or key_width,
        positions=config.position_embedding_type,
        dropout=config.dropout,
        label_smoothing=settings.optimization.label_smoothing,
        max_steps=settings.optimization.max_steps,
        target_tokens=target_tokens,
        vocab_size=config.vocab_size,
        parameters=count_parameters(config),
        parameters_with_40960_types=count_parameters(config, PAPERS_VOCABULARY) if scale == 1 else None,
        paper_parameters=None if row.parameters is None else row.parameters * 10**6,
        flops_per_target_token=flops,
        training_flops=flops * target_tokens,
        paper_training_flops=None if row.hours is None else papers_training_flops(row.hours),
        paper_perplexity=row.perplexity,
        paper_bleu=row.bleu,
    )


def measure(*runs: Run) -> Measurement:
    """Return what the finished runs of a row, one a seed, measured on their validation split."""
    finals = [logged_evaluations(run.directory, "validation")[-1] for run in runs]
    logged = [row for run in runs for row in logged_updates(run.directory)]
    first = finals[0]
    # The paper's protocol where its tokenizer knows the language.
    protocol = "sacrebleu" if first["paper_bleu"] is None else "paper_bleu"
    perplexities, bleus = ([final[name] for final in finals] for name in ("perplexity", protocol))
    return Measurement(
        seeds=len(runs),
        perplexity=round(statistics.fmean(perplexities), 3),
        perplexity_spread=spread(perplexities),
        bleu=round(statistics.fmean(bleus), 2),
        bleu_spread=spread(bleus),
        bleu_signature=first[f"{protocol}_signature"],
        sacrebleu=round(statistics.fmean(final["sacrebleu"] for final in finals), 2),
        sacrebleu_signature=first["sacrebleu_signature"],
        decoding=first["decoding"],
        sentences=first["sentences"],
        trained_target_tokens=sum(row["target_tokens"] for row in logged) // len(runs),
        tokens_per_second=statistics.median(row["target_tokens_per_second"] for row in logged),
    )


def spread(values: Sequence[float]) -> float | None:
    """Return how far the largest is from the smallest; None for a single one."""
    return round(max(values) - min(values), 3) if len(values) > 1 else None


def report_rows(described: Sequence[Description], finished: Mapping[str, Sequence[Run]]) -> list[ReportRow]:
    """Add to each row what its runs measured, those of them that have finished, and how far it is from base."""
    measured = {name: measure(*runs) for name, runs in finished.items() if runs}
    base = measured.get("base")
    return [
        ReportRow(row, measured.get(row.row), differences_to_base(row.row, measured.get(row.row), base))
        for row in described
    ]


def differences_to_base(name: str, measurement: Measurement | None, base: Measurement | None) -> Differences:
    """Return how far a row is from base, and how far the paper's row is from the paper's base."""
    perplexity = bleu = None
    if measurement is not None and base is not None:
        perplexity = round(measurement.perplexity - base.perplexity, 3)
        bleu = round(measurement.bleu - base.bleu, 3)
    return Differences(
        perplexity_minus_base=perplexity,
        paper_perplexity_minus_base=round(ROWS[name].perplexity - ROWS["base"].perplexity, 2),
        bleu_minus_base=bleu,
        paper_bleu_minus_base=round(ROWS[name].bleu - ROWS["base"].bleu, 2),
    )
