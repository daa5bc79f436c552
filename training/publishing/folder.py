"""Turn a trained model into a folder that works anywhere: weights, config, code, tokenizer, recipe and model card."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from transformers import PreTrainedTokenizerBase

from training.data.preparation import describe
from training.settings import ROOT, TrainingSettings
from vaswani import VaswaniForConditionalGeneration


# Type and name of each, and which signature it has.
METRICS = {
    "sacrebleu": ("bleu", "BLEU (sacreBLEU)", "sacrebleu_signature"),
    "chrf": ("chrf", "chrF (sacreBLEU)", "chrf_signature"),
    "paper_bleu": ("bleu", "BLEU (the paper's protocol: tokenized, compounds split)", "paper_bleu_signature"),
    "paper_bleu_without_split": (
        "bleu",
        "BLEU (the paper's protocol without splitting compounds)",
        "paper_bleu_signature",
    ),
    "perplexity": ("perplexity", "perplexity of a word piece, teacher-forced", None),
}
END_OF_TABLE = "<!-- Further evaluations are added above this line. -->"


def publish(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    settings: TrainingSettings,
    counts: dict[str, int],
    results: list[dict[str, Any]],
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
    results : list of dict
        The run's final evaluation rows, one a split; the last is the one that counts.
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
    write_card(model, settings, counts, results, folder)
    return folder


def write_card(
    model: VaswaniForConditionalGeneration,
    settings: TrainingSettings,
    counts: dict[str, int],
    results: list[dict[str, Any]],
    folder: Path,
) -> None:
    """Fill `MODEL_CARD.md` with what was measured, and write it as the folder's README.md."""
    languages = [settings.source_lang, settings.target_lang]
    run = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))["run"]
    name = settings.hub_model_id or Path(settings.output_dir).name
    training_text = _training_text(settings)
    card_data = ModelCardData(
        language=languages,
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vaswani", "transformer", "attention-is-all-you-need"],
        base_model=run.get("base_model"),
        base_model_relation="finetune" if "base_model" in run else None,
        datasets=[settings.dataset_name] if _is_hub_name(settings.dataset_name) else None,
        model_name=name,
        eval_results=[
            result
            for row in results
            for result in eval_results(
                row, languages, training_text, settings.dataset_name, settings.dataset_config_name
            )
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
        result=results[-1],
        table=[table_row(row, row["split"]) for row in results],
        end_of_table=END_OF_TABLE,
        parameters=f"{model.num_parameters():,}",
        config=model.config,
        settings=settings,
        counts=describe(counts),
        run=run,
    )
    card.save(folder / "README.md")


def eval_results(
    row: dict[str, Any], languages: list[str], text: str, dataset: str | None = None, config: str | None = None
) -> list[EvalResult]:
    """Return what an evaluation row has to say in the card's model-index: an entry a metric, with how it was made."""
    how = {name: row[name] for name in ("decoding", "checkpoint", "averaged_checkpoints") if row.get(name) is not None}
    return [
        EvalResult(
            task_type="translation",
            task_name=f"Translation {'-'.join(languages)}",
            dataset_type=dataset or "custom",
            dataset_name=text,
            dataset_config=config,
            dataset_split=row["split"],
            metric_type=metric,
            metric_name=label,
            metric_value=row[key],
            metric_args=({"signature": row[signature]} if signature else {}) | how,
        )
        for key, (metric, label, signature) in METRICS.items()
        if row.get(key) is not None
    ]


def table_row(row: dict[str, Any], text: str) -> str:
    """Return an evaluation row as a line of the card's table of results."""
    names = ("sacrebleu", "sacrebleu_lowercased", "chrf", "paper_bleu", "paper_bleu_without_split")
    averaged = row.get("averaged_checkpoints") or 1
    weights = f"average of the last {averaged} checkpoints" if averaged > 1 else str(row.get("checkpoint", "the last"))
    cells = [text, f"{row['sentences']:,}", f"{row['decoding']}; {weights}"]
    cells += ["-" if row[name] is None else str(row[name]) for name in names]
    cells += [f"{row['exact_match']}%", f"{row['nll']} ({row['perplexity']})"]
    signature = row["sacrebleu_signature"].replace("|", r"\|")
    return f"| {' | '.join([*cells, f'`{signature}`'])} |"


def add_to_card(row: dict[str, Any], path: Path) -> None:
    """Add an evaluation that was made later to a card: to its table, and to its model-index."""
    card = ModelCard.load(path)
    languages = [str(language) for language in card.data.language or [row["target_lang"]]]
    # Results of one type, configuration and split are one entry, so the name must be part of these.
    results = eval_results(row, languages, row["test_set"], row["test_set"].split(" ")[0])
    card.data.eval_results = [*(card.data.eval_results or []), *results]
    card.data.model_name = card.data.model_name or path.parent.name
    line = table_row(row, f"{row['test_set']}, {row['split']}")
    if END_OF_TABLE in card.text:
        card.text = card.text.replace(END_OF_TABLE, f"{line}\n{END_OF_TABLE}")
    card.save(path)


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
