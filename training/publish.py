"""Turn a trained model into a folder that works anywhere: weights, config, code, tokenizer, recipe and model card."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from transformers import PreTrainedTokenizerBase

from training.data import describe
from training.settings import ROOT, TrainingSettings
from vaswani import VaswaniForConditionalGeneration


METRICS = {"sacrebleu": ("bleu", "BLEU (sacreBLEU)"), "chrf": ("chrf", "chrF")}


def publish(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    settings: TrainingSettings,
    counts: dict[str, int],
    result: dict[str, Any],
    directory: Path,
) -> Path:
    """Write the model folder of a finished run.

    Parameters
    ----------
    model, tokenizer
        What the run trained.
    settings : TrainingSettings
        What it was trained by.
    counts : dict of str to int
        Training pairs kept and dropped, by reason.
    result : dict
        The run's final evaluation row.
    directory : Path
        The run's output directory, which holds `recipe.toml`.

    Returns
    -------
    Path
        ``directory/model``.
    """
    folder = directory / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.copyfile(directory / "recipe.toml", folder / "recipe.toml")
    write_card(model, settings, counts, result, folder)
    return folder


def write_card(
    model: VaswaniForConditionalGeneration,
    settings: TrainingSettings,
    counts: dict[str, int],
    result: dict[str, Any],
    folder: Path,
) -> None:
    """Fill `MODEL_CARD.md` with what was measured, and write it as the folder's README.md."""
    languages = [settings.source_lang, settings.target_lang]
    name = settings.hub_model_id or Path(settings.output_dir).name
    training_text = _training_text(settings)
    card_data = ModelCardData(
        language=languages,
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vaswani", "transformer", "attention-is-all-you-need"],
        datasets=[settings.dataset_name] if _is_hub_name(settings.dataset_name) else None,
        model_name=name,
        eval_results=[
            EvalResult(
                task_type="translation",
                task_name=f"Translation {'-'.join(languages)}",
                dataset_type=settings.dataset_name or "custom",
                dataset_name=training_text,
                dataset_config=settings.dataset_config_name,
                dataset_split=result["split"],
                metric_type=metric,
                metric_name=label,
                metric_value=result[key],
            )
            for key, (metric, label) in METRICS.items()
        ],
    )
    card = ModelCard.from_template(
        card_data,
        template_path=str(ROOT / "MODEL_CARD.md"),
        model_name=name,
        model_path=settings.hub_model_id or str(folder),
        source_lang=settings.source_lang,
        target_lang=settings.target_lang,
        training_text=training_text,
        example=json.dumps("This is a sentence."),
        result=result,
        parameters=f"{model.num_parameters():,}",
        config=model.config,
        settings=settings,
        counts=describe(counts),
        run=tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))["run"],
    )
    card.save(folder / "README.md")


def _training_text(settings: TrainingSettings) -> str:
    if settings.dataset_name == "grammar":
        return "the generated English-German grammar corpus"
    if settings.dataset_name is None:
        return f"`{', '.join(Path(path).name for path in settings.train_file or [])}`"
    config = f" ({settings.dataset_config_name})" if settings.dataset_config_name else ""
    name = settings.dataset_name if _is_hub_name(settings.dataset_name) else Path(settings.dataset_name).name
    return f"`{name}`{config}"


def _is_hub_name(name: str | None) -> bool:
    return name is not None and name != "grammar" and not Path(name).exists()


def push(folder: Path, settings: TrainingSettings) -> str:
    """Send a model folder to the Hub, creating its repository if need be, and return its address."""
    api = HfApi()
    name = settings.hub_model_id or Path(settings.output_dir).name
    repo_id = api.create_repo(name, exist_ok=True).repo_id
    return str(api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message="Publish the trained model"))
