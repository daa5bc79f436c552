"""Runs that look as if they had finished with figures that a test gives; a full disk; an evaluation of parses."""

import json
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from training.tables.sweep import Run
from training.tables.systems.catalogue import SYSTEMS
from training.tables.systems.plan import Plan
from vaswani.results import ParsingEvaluation


GIVEN = ["--dataset_name=grammar", "--vocab_size=400", "--max_tokens_per_batch=1000"]
GIVEN += ["--max_source_length=64", "--max_target_length=64", "--warmup_steps=2"]


@pytest.fixture
def make_plan(tmp_path: Path) -> Callable[..., Plan]:
    """Return a factory of plans: two systems, two seeds, three learning rates, a budget of 1e13 FLOPs."""

    def make(*flags: str, systems: str = "recurrent,transformer", **options) -> Plan:
        given = {"flops": 1e13, "target_tokens": None, "minutes": None, "scale": 0.125, "seeds": [1, 2], "jobs": 1}
        given |= {"learning_rate_factors": [0.5, 1.0, 2.0], "search_share": 0.1, "output_dir": tmp_path}
        given["command"] = "python training/table2.py"
        chosen = [SYSTEMS[name] for name in systems.split(",")]
        return Plan(chosen, Namespace(**given | options), [*GIVEN, *flags])

    return make


@pytest.fixture
def finish() -> Callable[..., None]:
    """Return a function that makes a run look finished, with these perplexities on validation and test."""

    def write(run: Run, perplexity: float, speed: float = 500.0) -> None:
        (run.directory / "model").mkdir(parents=True)
        (run.directory / "model" / "README.md").touch()
        rows: list[dict] = [{"step": 5, "target_tokens": 4000, "target_tokens_per_second": speed}]
        rows += [{"step": 10, "target_tokens": 6000, "target_tokens_per_second": speed * 2}]
        rows += [{"step": 5, "split": "validation", "perplexity": 99.0, "sacrebleu": 3.0, "decoding": "greedy"}]
        for split, extra in (("validation", 0.0), ("test", 1.0)):
            row = {"step": 10, "split": split, "perplexity": perplexity + extra, "sacrebleu": 5.0}
            rows.append(row | {"decoding": "beam 4, alpha 0.6"})
        (run.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run.directory / "recipe.toml").write_text(
            '[run]\nhardware = "a machine"\nprecision = "bf16"\ntorch = "2"\ndate = "today"\n'
        )
        shutil.copy(run.directory / "recipe.toml", run.directory / "model")

    return write


@pytest.fixture
def write_half() -> Callable[..., None]:
    """Return what `Path.write_text` is on a disk that becomes full in the middle of a file."""

    def write(path: Path, text: str, **options) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text[: len(text) // 2])
        raise OSError("the disk is full")

    return write


@pytest.fixture
def parses() -> ParsingEvaluation:
    """Return an evaluation of parses of which no two values are equal."""
    scores = {"bracketing_recall": 71.1, "bracketing_precision": 72.2, "bracketing_f1": 73.3, "tagging_accuracy": 94.4}
    scores |= {"average_crossing": 2.5, "no_crossing": 36.6, "two_or_less_crossing": 57.7, "exact_match": 8.8}
    return ParsingEvaluation(
        step=500, averaged_checkpoints=4, checkpoint="step 500", split="test", target_lang="tree", nll=1.25,
        perplexity=3.49, sentences=237, decoding="beam 4, alpha 0.3, trees only", well_formed=99.1, evalb_errors=3,
        bracketing_f1_by_length={}, **scores,
    )  # fmt: skip
