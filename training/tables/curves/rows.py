"""The runs behind learning curves: shares of the text, and other models on all of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash
from datasets import Dataset, DatasetDict

from training.data.vocabulary import count_types
from training.recipe import parse_settings, write_recipe
from training.settings import TrainingSettings
from training.tables.command import check_origin
from training.tables.cost import flops_per_target_token
from training.tables.flags import check_shares
from training.tables.sweep import Run
from training.trainer.model import load_config
from vaswani.errors import UserError
from vaswani.files import whole_file
from vaswani.models.configuration_vaswani import TranslatorConfig


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes
    ----------
    share : float
        Of the training pairs.
    config : str
        Of the model: a folder of hub_configs/, or another.
    """

    share: float
    config: str

    @property
    def folder(self) -> str:
        """Its name as that of a folder, such as "base-en-de-12.5"."""
        return f"{Path(self.config).name}-{100 * self.share:g}"


def make_rows(shares: Sequence[float], configs: Sequence[str]) -> list[Row]:
    """Return a row for each share with the first config, and for each further config with all text.

    Raises
    ------
    UserError
        If something is named twice, or two shares have one name.
    """
    if len({f"{100 * share:g}" for share in (*shares, 1.0)}) < len({*shares, 1.0}):
        raise UserError(
            f"shares={','.join(map(str, shares))!r} must differ when rounded to six digits, from 1 too, which always "
            "has a run"
        )
    rows = [Row(share, configs[0]) for share in sorted({*shares, 1.0})] + [Row(1.0, config) for config in configs[1:]]
    if len({row.folder for row in rows}) < len(rows):
        raise UserError(f"configs={','.join(configs)!r} must be different names")
    return rows


def make_run(row: Row, settings: TrainingSettings, folder: Path) -> Run:
    """Plan the run of a row, whose text `write_texts` writes and whose recipe stands in `folder`.

    Parameters
    ----------
    row : Row
    settings : TrainingSettings
        Of all rows.
    folder : Path
        Of the curves.
    """
    texts = folder / "texts"
    files = {f"{split}_file": [str(texts / f"{split}.parquet")] for split in ("validation", "test")}
    files["train_file"] = [str(texts / f"train-{100 * row.share:g}.parquet")]
    given = replace(
        settings,
        data=replace(settings.data, dataset_name=None, dataset_config_name=None, **files),
        model=replace(settings.model, config_name=row.config),
        run=replace(settings.run, output_dir=str(folder / row.folder)),
    )
    recipe = folder / "recipes" / f"{row.folder}.toml"
    recipe.parent.mkdir(parents=True, exist_ok=True)
    write_recipe(given, {}, recipe)
    optimization = given.optimization
    tokens = optimization.max_steps * optimization.max_tokens_per_batch
    cost = tokens * flops_per_target_token(config_of(row, given))
    return Run(row.folder, [str(recipe)], parse_settings([str(recipe)]), cost)


def config_of(row: Row, settings: TrainingSettings) -> TranslatorConfig:
    """Load the config of a row's model, with as many types as its vocabulary has."""
    config = load_config(row.config)
    config.vocab_size = count_types(settings.model)
    return config


def write_texts(rows: Sequence[Row], text: DatasetDict, settings: TrainingSettings, folder: Path) -> None:
    """Write the shares of the training text, and validation and test as they are, unless they are there.

    Pairs are drawn at random, since the parts of a corpus often follow each other. Smaller shares are parts of larger
    ones.

    Raises
    ------
    UserError
        If there is no test split, a share leaves no pair, or the texts that are there are those of other data.
    """
    if "test" not in text:
        raise UserError("there is no test split, on which the finished models are compared")
    languages = {"source": settings.data.source_lang, "target": settings.data.target_lang}
    order = np.random.default_rng(settings.optimization.seed).permutation(len(text["train"]))
    parts: dict[str, Dataset] = {split: text[split] for split in ("validation", "test")}
    shares = sorted({row.share for row in rows})
    check_shares(shares, len(order), "training pairs")
    for share in shares:
        chosen = np.sort(order[: round(share * len(order))])
        parts[f"train-{100 * share:g}"] = text["train"].select(chosen)
    folder.mkdir(parents=True, exist_ok=True)
    checksums = {split: checksum(rows) for split, rows in text.items()}
    check_origin(checksums | {"seed": settings.optimization.seed}, folder)
    for name, part in parts.items():
        path = folder / f"{name}.parquet"
        if not path.exists():
            with whole_file(path) as unfinished:
                part.rename_columns(languages).to_parquet(unfinished)


def checksum(rows: Dataset) -> str:
    """Hash sources and targets."""
    digest = xxhash.xxh3_128()
    for batch in rows.iter(10_000):
        digest.update(json.dumps([batch["source"], batch["target"]]).encode())
    return digest.hexdigest()
