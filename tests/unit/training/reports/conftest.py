import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


SOURCES = ["ein Hund", "zwei Katzen <b>", "", "שלום עולם"]
REFERENCES = ["a dog", "two cats <b>", "nothing", "hello world"]
OUTPUTS = {
    "step-0000002": ["a", "x", "x", "y"],
    "step-0000004": ["a dog", "two", "x", "hello"],
    "final": ["a dog", "two dogs <b>", "x", "hello world"],
}


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Return a factory of directories as runs leave them: six updates logged in three rows, three evaluations."""

    def make(name: str = "mine", finished: bool = True, **recipe) -> Path:
        folder = tmp_path / name
        (folder / "outputs").mkdir(parents=True)
        rows = [
            {"step": step, "loss": 9.0 - step, "nll": 8.0 - step, "gradient_norm": 1.0 / step, "learning_rate": 0.1,
             "target_tokens": 100 * step, "target_tokens_per_second": 50.0, "density": 0.9, "skipped_updates": 1}
            for step in (2, 4, 6)
        ]  # fmt: skip
        scores = {"sacrebleu": 20.5, "chrf": 40.25, "nll": 2.5, "perplexity": 12.2, "exact_match": 3.5}
        rows.insert(1, {"step": 2, "split": "validation", "decoding": "greedy", **scores})
        rows.append({"step": 6, "split": "validation", "decoding": "beam 4", **scores, "sacrebleu": 33.75})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = {"source_lang": "de", "target_lang": "en", "max_steps": 6, "seed": 2017} | recipe
        lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
        (folder / "recipe.toml").write_text("\n".join([*lines, "[run]", 'hardware = "a machine"', ""]))
        for kind, sentences in {"source": SOURCES, "reference": REFERENCES, **OUTPUTS}.items():
            text = "".join(f"{sentence}\n" for sentence in sentences)
            (folder / "outputs" / f"validation.{kind}.txt").write_text(text, encoding="utf-8")
        (folder / "lengths.json").write_text('{"source": [0, 3, 5], "target": [0, 2, 6]}')
        if finished:
            (folder / "model").mkdir()
            (folder / "model" / "README.md").touch()
            shutil.copy(folder / "recipe.toml", folder / "model")
        return folder

    return make
