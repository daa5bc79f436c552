import pytest
from datasets import Dataset, DatasetDict

from training.recipe import parse_settings
from training.tables.curves.points import Point
from training.tables.curves.rows import Row


COUNTS = {"train": 8, "validation": 3, "test": 2}


def evaluation(split: str, bleu: float) -> dict:
    return {"split": split, "sacrebleu": bleu, "chrf": 20 + bleu, "nll": 2.0}


@pytest.fixture
def points() -> list[Point]:
    """Return runs in which twice the text gives 4 points and then 2, and twice the model 1."""

    def make(share, config, parameters, bleu):
        on_the_way = [(tokens, evaluation("validation", bleu - 8 / tokens)) for tokens in (1, 2, 4)]
        return Point(
            row=Row(share, config),
            pairs=round(1000 * share),
            parameters=parameters,
            target_tokens=8,
            seconds=120.0,
            flops=1e12,
            on_the_way=on_the_way,
            validation=evaluation("validation", bleu + 0.5),
            test=evaluation("test", bleu),
        )

    rows = [(0.25, "a/small", 100, 20.0), (0.5, "a/small", 100, 24.0), (1.0, "a/small", 100, 26.0)]
    return [make(*row) for row in [*rows, (1.0, "large", 400, 28.0)]]


@pytest.fixture
def settings(tmp_path):
    text = [
        "--dataset_name=me/text",
        "--dataset_config_name=en-de",
        "--source_lang=en",
        "--target_lang=de",
        "--vocab_size=300",
    ]
    run = [f"--output_dir={tmp_path / 'unused'}", "--max_steps=20", "--eval_steps=10", "--save_steps=10"]
    return parse_settings([*text, "--config_name=demo", *run])


@pytest.fixture
def text() -> DatasetDict:
    rows = {split: [f"{split} {number}" for number in range(count)] for split, count in COUNTS.items()}
    return DatasetDict(
        {name: Dataset.from_dict({"source": side, "target": side[::-1]}) for name, side in rows.items()}
    )
