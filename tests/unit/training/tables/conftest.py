import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from training.tables.rows import ROWS
from training.tables.sweep import Run


GIVEN = ["--dataset_name", "grammar", "--source_lang", "en", "--target_lang", "de"]


@pytest.fixture
def planned_run(tmp_path: Path) -> Callable[[str], Run]:
    """Return a factory of runs that have not started: of a row's name, perhaps with a hyphen and a seed behind it."""

    def make(name: str) -> Run:
        row, _, seed = (name, "", "2017") if name in ROWS else name.rpartition("-")
        flags = [*GIVEN, f"--output_dir={tmp_path / name}", "--max_steps=10", "--save_steps=5", f"--seed={seed}"]
        return Run(name, [], ROWS[row].settings(*flags), cost=1.0)

    return make


@pytest.fixture
def finished_row(planned_run: Callable[[str], Run]) -> Callable[..., Run]:
    """Return a factory of runs whose directories look as if they had finished with the figures that it is given."""

    def make(name: str, perplexity: float, paper_bleu: float | None, sacrebleu: float) -> Run:
        run = planned_run(name)
        (run.directory / "model").mkdir(parents=True)
        (run.directory / "model" / "README.md").touch()
        logged = [{"target_tokens": 100, "target_tokens_per_second": rate} for rate in (50.0, 70.0, 10.0)]
        final = {"split": "validation", "perplexity": perplexity, "paper_bleu": paper_bleu, "sacrebleu": sacrebleu}
        final |= {"paper_bleu_signature": None if paper_bleu is None else "the paper's", "decoding": "beam 4"}
        final |= {"sacrebleu_signature": "today's", "sentences": 5}
        others = [final | {"perplexity": 999.0}, final, final | {"split": "test", "perplexity": 888.0}]
        lines = [json.dumps({"step": 10} | row) + "\n" for row in logged + others]
        (run.directory / "metrics.jsonl").write_text("".join(lines) + '{"torn')
        (run.directory / "recipe.toml").write_text(
            'dataset_name = "grammar"\nsource_lang = "en"\ntarget_lang = "de"\nvocab_size = 9\nseed = 1\n'
            '[run]\nhardware = "a machine"\nprecision = "bf16"\ntorch = "2"\ndate = "today"\n'
        )
        shutil.copy(run.directory / "recipe.toml", run.directory / "model")
        return run

    return make
