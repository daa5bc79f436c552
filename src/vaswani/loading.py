"""Load a model and its tokenizer from a folder or the Hub, or say in a sentence why they cannot be used."""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    CompileConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as verbosity_of_transformers

from .errors import UserError, first_line, not_found
from .models.decoding_vaswani import DecodingSettings
from .models.fusion_vaswani import CannotCompile, Fused
from .models.int8_vaswani import Int8IsMissing
from .models.packing_vaswani import multiplies_bfloat16
from .models.pipeline_vaswani import tokenizer_problem


logger = logging.getLogger(__name__)

INT8 = "int8"  # beside the types of torch, what `load` takes as `dtype`


def load(
    name: str,
    tokenizer_name: str | None = None,
    device: str | None = None,
    dtype: str = "auto",
    torch_compile: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model for translation and its tokenizer, from a folder or the Hub.

    Parameters
    ----------
    name : str
        Folder or Hub id.
    tokenizer_name : str or None, default=None
        Where the tokenizer is, if not there.
    device : str or None, default=None
        Such as "cpu" or "cuda:1"; None means an accelerator where there is one.
    dtype : str, default="auto"
        Such as "float32" or "bfloat16"; "auto" means the one that it was saved in. "int8" is for our Transformers on a
        CPU, which `device` None then means; where the CPU or torch cannot, float32 takes its place.
    torch_compile : bool, default=False
        Whether its searches compile what they can, which is for our Transformers: see `fusion_vaswani`. On a GPU by
        CUDA they record their steps in any case, where they can: see `graphs_vaswani`.

    Raises
    ------
    UserError
        If model or tokenizer is missing or not whole, they do not fit each other, there is no such device, or int8 or
        compiling is not for it.

    Warns
    -----
    A warning is logged where float32 takes int8's place, nothing can be compiled, or a CPU is slow in bfloat16.
    """
    model = load_whole_model(name, dtype="float32" if dtype == INT8 else dtype)
    check_generation_config(name)
    tokenizer = load_tokenizer(tokenizer_name or name, model)
    if device is None:
        device = "cpu" if dtype == INT8 else str(torch.accelerator.current_accelerator() or "cpu")
    try:
        model = model.to(device).eval()
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={device!r} must be a device of this machine: {first_line(error)}") from error
    if dtype == INT8:
        _quantize(model, name)
    if model.dtype is torch.bfloat16 and model.device.type == "cpu" and not multiplies_bfloat16():
        logger.warning("this CPU has no instructions for bfloat16, the type of model=%r: float32 is faster", name)
    if model.device.type == "meta":
        raise UserError("device='meta' must be a device that computes")
    if torch_compile or (model.device.type == "cuda" and _fused(model) is not None):
        _compile(model, name)
    return model, tokenizer


def load_whole_model(name: str, dtype: str) -> Any:
    """Load a model from a folder or the Hub, of which no weight may be missing or of another shape.

    Raises
    ------
    UserError
        If it cannot be loaded, or its weights do not fit its config.
    """
    model, problems = load_weights(name, dtype=dtype)
    problems.pop("unexpected", None)  # of which others may know
    if problems:
        raise UserError(f"model={name!r} has weights that do not fit its config.json: {', '.join(problems.values())}")
    return model


def load_weights(name: str, setting: str = "model", **how: Any) -> tuple[Any, dict[str, str]]:
    """Load a model from a folder or the Hub, and say in which ways its weights do not fit its config.

    Parameters
    ----------
    name : str
    setting : str, default="model"
        What named it, for the error.
    **how
        As for ``from_pretrained``.

    Returns
    -------
    model : PreTrainedModel
        Weights that it lacks are random.
    problems : dict of str to str
        How many weights are "missing", "unexpected" or "mismatched", if any are, and one of them, in words.

    Raises
    ------
    UserError
        If it cannot be loaded at all.
    """
    verbosity = verbosity_of_transformers.get_verbosity()
    verbosity_of_transformers.set_verbosity_error()  # its table of weights says less than the problems
    try:
        model, report = AutoModelForSeq2SeqLM.from_pretrained(
            name, ignore_mismatched_sizes=True, output_loading_info=True, **how
        )
    except Exception as error:  # depending on what is wrong, the libraries raise half a dozen kinds
        if not Path(name).exists():
            raise not_found(name, error, setting) from error
        raise UserError(f"{setting}={name!r} cannot be loaded: {first_line(error)}") from error
    finally:
        verbosity_of_transformers.set_verbosity(verbosity)
    problems = {}
    for kind, keys in report.items():
        names = sorted(key if isinstance(key, str) else key[0] for key in keys)  # some come with two shapes
        if kind == "missing_keys":
            names = [key for key in names if not _is_computed(model, key)]
        if names:
            problems[kind.removesuffix("_keys")] = f"{len(names)} {kind.removesuffix('_keys')}, such as {names[0]}"
    return model, problems


def _is_computed(model: PreTrainedModel, key: str) -> bool:
    """Tell whether a weight is of a table of sinusoids, which transformers computes: FSMT's files are without it."""
    return type(model.get_submodule(key.rpartition(".")[0])).__name__.endswith("SinusoidalPositionalEmbedding")


def check_generation_config(name: str, setting: str = "model") -> None:
    """Refuse a folder whose `generation_config.json` cannot be used: transformers would search without it."""
    if not (Path(name) / "generation_config.json").exists():
        return
    try:
        DecodingSettings.read({}, None, GenerationConfig.from_pretrained(name))
    except (OSError, TypeError, ValueError) as error:
        raise UserError(
            f"{setting}={name!r} has a generation_config.json that cannot be used: {first_line(error)}"
        ) from error


def load_tokenizer(where: str, model: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, or of a model of `interop.engines`, from a folder or the Hub.

    Raises
    ------
    UserError
        If it is missing, or does not fit the model.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
    except Exception as error:  # depending on what is missing, the library raises half a dozen kinds
        raise UserError(
            f"model={where!r} has no tokenizer: it must hold a tokenizer.json beside the model ({first_line(error)})"
        ) from error
    problem = tokenizer_problem(model, tokenizer)
    if problem is not None:
        raise UserError(f"model={where!r} {problem}")
    return tokenizer


def _quantize(model: PreTrainedModel, name: str) -> None:
    """Put int8 in the place of a model's matrices, or leave them and warn where this machine cannot."""
    if not hasattr(model, "quantize"):
        raise UserError(f"dtype='int8' is for Transformers of this library, and model={name!r} is of another kind")
    try:
        model.quantize()
    except Int8IsMissing as error:
        logger.warning("%s; the model computes in float32 instead", error)
    except ValueError as error:
        raise UserError(f"dtype='int8' does not go together with model={name!r}: {error}") from error


def _compile(model: PreTrainedModel, name: str) -> None:
    """Let a model's searches compile what they can, or warn where there is no compiler."""
    fused = _fused(model)
    if fused is None:
        raise UserError(
            f"torch_compile is for Transformers of this library on a CPU or a GPU by CUDA, and model={name!r} is of "
            f"another kind, or on device {str(model.device)!r}"
        )
    try:
        fused.enter(torch.zeros(2, model.config.d_model), torch.bfloat16, False)  # a cast: something to compile
    except CannotCompile as error:
        logger.warning("%s; nothing is compiled instead", error)
        return
    model.generation_config.compile_config = CompileConfig()


def _fused(model: PreTrainedModel) -> Fused | None:
    """Return how a model's searches are compiled, or None if they cannot be."""
    return model.fused(CompileConfig()) if hasattr(model, "fused") else None
