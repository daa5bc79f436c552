"""Turn a trained model into a folder that works anywhere: weights, config, code, tokenizer, recipe and model card."""

import json
import shutil
import tomllib
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from training.data.preparation import describe_counts
from training.settings import GRAMMAR, ROOT, DataSettings, TrainingSettings, has_configurations
from vaswani.card import END_OF_TABLE, eval_results, table_row
from vaswani.errors import UserError
from vaswani.files import give_usual_mode, write_text
from vaswani.models.translator_vaswani import TranslatorForConditionalGeneration
from vaswani.models.trees_vaswani import TREES
from vaswani.results import Evaluation


CARD = "README.md"
# For the card, by type of model.
TAGS = {
    "vaswani": ["vaswani", "transformer", "attention-is-all-you-need"],
    "recurrent": ["vaswani", "recurrent"],
    "convolutional": ["vaswani", "convolutional", "convs2s"],
}


def publish(
    model: TranslatorForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    settings: TrainingSettings,
    counts: dict[str, int],
    results: list[Evaluation],
    directory: Path,
    repository: str | None = None,
) -> Path:
    """Write the model folder of a finished run.

    Parameters
    ----------
    model, tokenizer
        The trained model with the weights to publish, and its tokenizer.
    settings : TrainingSettings
        Of the run.
    counts : dict of str to int
        Training pairs kept and dropped, by reason.
    results : list of Evaluation
        The run's final evaluations, one a split; the last is the one that counts.
    directory : Path
        The run's output directory, which holds `recipe.toml`.
    repository : str, optional
        The full name of the repository on the Hub that it will be sent to.

    Returns
    -------
    Path
        ``directory/model``.

    Raises
    ------
    UserError
        If it cannot be written, as on a full disk.
    """
    folder = directory / "model"
    place = repository or settings.reporting.hub_model_id or str(folder)
    try:
        (folder / CARD).unlink(missing_ok=True)  # by it a run counts as finished: it is written last
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        shutil.copyfile(directory / "recipe.toml", folder / "recipe.toml")
        write_card(model, tokenizer, settings, counts, results, folder, place)
        give_usual_mode(folder)
    except (OSError, SafetensorError) as error:
        raise UserError(f"the model could not be written to {folder}: {error}; make room, then resume") from error
    return folder


def write_card(
    model: TranslatorForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    settings: TrainingSettings,
    counts: dict[str, int],
    results: list[Evaluation],
    folder: Path,
    place: str,
) -> None:
    """Fill `MODEL_CARD.md` with what was measured, and the place to load it from; write the folder's README.md."""
    data = settings.data
    languages = [data.source_lang, data.target_lang]
    run = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))["run"]
    name = settings.model_name
    is_parser = data.target_lang == TREES
    texts = [_text(data, evaluation.split) for evaluation in results]
    dataset = data.dataset_name if _is_hub_name(data.dataset_name) else None
    card_data = ModelCardData(
        language=languages[:1] if is_parser else languages,
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="token-classification" if is_parser else "translation",
        tags=TAGS[model.config.model_type] + ["constituency-parsing"] * is_parser,
        base_model=run.get("base_model"),
        base_model_relation="finetune" if "base_model" in run else None,
        datasets=None if dataset is None else [dataset],
        model_name=name,
        eval_results=[
            result
            for evaluation, text in zip(results, texts, strict=True)
            for result in eval_results(evaluation, languages, text.replace("`", ""), dataset, data.dataset_config_name)
        ],
    )
    card = ModelCard.from_template(
        card_data,
        template_path=str(ROOT / "MODEL_CARD.md"),
        model_name=name,
        model_path=place,
        source_lang=data.source_lang,
        target_lang=data.target_lang,
        is_parser=is_parser,
        is_byte_level=tokenizer.is_fast and "ByteLevel" in repr(tokenizer.backend_tokenizer.pre_tokenizer),
        decoding=model.generation_config,
        training_text=_text(data, "train"),
        measured_on=" and ".join(dict.fromkeys(texts)),
        example=json.dumps("This is a sentence."),
        result=results[-1],
        table=[table_row(evaluation, evaluation.split) for evaluation in results],
        end_of_table=END_OF_TABLE,
        parameters=f"{model.num_parameters():,}",
        config=model.config,
        settings=settings.values(),
        counts=describe_counts(counts),
        run=run,
    )
    write_text(folder / CARD, str(card))


def _text(data: DataSettings, split: str) -> str:
    """Name the text of a split for the card, without the paths of a machine."""
    if data.dataset_name == GRAMMAR:
        return "the generated English-German grammar corpus"
    if data.dataset_name is None:
        return f"`{', '.join(Path(path).name for path in getattr(data, f'{split}_file') or [])}`"
    config = f" ({data.dataset_config_name})" if data.dataset_config_name else ""
    name = data.dataset_name if _is_hub_name(data.dataset_name) else Path(data.dataset_name).name
    return f"`{name}`{config}"


def _is_hub_name(name: str | None) -> bool:
    return has_configurations(name) and not Path(str(name)).exists()
