"""The original Transformer (Vaswani et al. 2017) for Hugging Face transformers.

Importing this package registers the model with `AutoConfig`, `AutoModel` and `AutoModelForSeq2SeqLM`, and gives
``pipeline("translation", ...)`` and ``pipeline("translation_XX_to_YY", ...)`` back to transformers 5, with
``pipeline("parse", ...)`` beside them.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, pipelines
from transformers.models.auto import modeling_auto

from .models.configuration_vaswani import VaswaniConfig
from .models.modeling_convolutional import (
    ConvolutionalConfig,
    ConvolutionalForConditionalGeneration,
    ConvolutionalModel,
)
from .models.modeling_recurrent import RecurrentConfig, RecurrentForConditionalGeneration, RecurrentModel
from .models.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .models.parsing_vaswani import ParsingPipeline
from .models.pipeline_vaswani import TranslationPipeline


__version__ = "0.1.0"

# Config, base model and model of each kind.
MODELS = (
    (VaswaniConfig, VaswaniModel, VaswaniForConditionalGeneration),
    (ConvolutionalConfig, ConvolutionalModel, ConvolutionalForConditionalGeneration),
    (RecurrentConfig, RecurrentModel, RecurrentForConditionalGeneration),
)
MODEL_TYPES = tuple(config.model_type for config, *_ in MODELS)


class _TranslationAliases(dict):
    """Task aliases of transformers, in which every "translation_XX_to_YY" stands for "translation"."""

    def __contains__(self, task: object) -> bool:
        return super().__contains__(task) or (isinstance(task, str) and task.startswith("translation_"))

    def __missing__(self, task: str) -> str:
        return "translation"


def _register() -> None:
    for config, base, model in MODELS:
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, base, exist_ok=True)
        AutoModelForSeq2SeqLM.register(config, model, exist_ok=True)
        # Trainer, model cards and transformers' own tests tell what a model is for by the name of its class.
        modeling_auto.MODEL_MAPPING_NAMES[config.model_type] = base.__name__
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[config.model_type] = model.__name__
    registry = pipelines.PIPELINE_REGISTRY
    if "translation" not in registry.supported_tasks:
        # Newer releases refuse the name before they look into the registry.
        getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
        registry.register_pipeline("translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
        # Saved folders name the pipeline themselves, under both of its tasks (`VaswaniConfig.to_dict`).
        del TranslationPipeline._registered_impl  # ty: ignore[missing-attribute]
        registry.task_aliases = _TranslationAliases(registry.task_aliases)
    if "parse" not in registry.supported_tasks:
        registry.register_pipeline("parse", ParsingPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
        del ParsingPipeline._registered_impl  # ty: ignore[missing-attribute]


_register()

__all__ = [
    "ConvolutionalConfig",
    "ConvolutionalForConditionalGeneration",
    "ConvolutionalModel",
    "ParsingPipeline",
    "RecurrentConfig",
    "RecurrentForConditionalGeneration",
    "RecurrentModel",
    "TranslationPipeline",
    "VaswaniConfig",
    "VaswaniForConditionalGeneration",
    "VaswaniModel",
    "__version__",
]
