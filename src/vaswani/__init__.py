"""The original Transformer (Vaswani et al. 2017) for Hugging Face transformers.

Importing this package registers the model with `AutoConfig`, `AutoModel` and `AutoModelForSeq2SeqLM`, and gives
``pipeline("translation", ...)`` and ``pipeline("translation_XX_to_YY", ...)`` back to transformers 5, with
``pipeline("parse", ...)`` beside them. The classes, and with them torch and transformers, are imported when they are
first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registration import MODELS, register


if TYPE_CHECKING:
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

MODEL_TYPES = tuple(MODELS)

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

# The file of each class, by the start of its name; the first that fits.
_FILES = {
    "Convolutional": "modeling_convolutional",
    "Parsing": "parsing_vaswani",
    "Recurrent": "modeling_recurrent",
    "Translation": "pipeline_vaswani",
    "VaswaniConfig": "configuration_vaswani",
    "Vaswani": "modeling_vaswani",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    file = next(file for start, file in _FILES.items() if name.startswith(start))
    globals()[name] = value = getattr(import_module(f".models.{file}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register()
