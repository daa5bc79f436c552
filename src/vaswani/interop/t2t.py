"""A checkpoint of tensor2tensor, the library in which the paper's authors wrote their code, as our Transformer.

Its sinusoids have other wavelengths than the paper's, and its encoder adds to each position a vector that says into
what to translate: both become a learned table. Its models that normalize behind each sub-layer can be ours, as the
paper's do; those that normalize before it, its own default since October 2017, are refused. Variables are named as
since version 1.5, when attention had lost its biases; `tests/unit/vaswani/interop/tensor2tensor` has such models.
"""

import json
import math
import re
import zlib
from collections.abc import Container, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError

from vaswani.errors import UserError, first_line, require
from vaswani.models.configuration_vaswani import VaswaniConfig
from vaswani.models.modeling_vaswani import VaswaniForConditionalGeneration

from .marian import refuse_others


# What tensor2tensor writes beside its checkpoints; and a copy of a checkpoint's variables that needs no TensorFlow.
HPARAMS, VARIABLES = "hparams.json", "variables.npz"
PAD, EOS = 0, 1
# Settings of "transformer_base_v1" that make it the paper's model, and what else comes to the same.
PAPERS_HPARAMS = {
    "layer_preprocess_sequence": ("none", ""), "layer_postprocess_sequence": ("dan", "an"), "norm_type": ("layer",),
    "pos": ("timing",), "self_attention_type": ("dot_product",), "multiply_embedding_mode": ("sqrt_depth",),
    "ffn_layer": ("dense_relu_dense", "conv_hidden_relu"), "attention_variables_3d": (False,),
    "prepend_mode": ("none",), "proximity_bias": (False,), "causal_decoder_self_attention": (True,),
    "unidirectional_encoder": (False,), "hard_attention_k": (0,), "num_area_layers": (0,),
}  # fmt: skip
STACKS = ("encoder", "decoder")
# Settings that are whole numbers, and the least of each; where 0 is allowed, it leaves the value to another setting.
SIZES = dict.fromkeys(("hidden_size", "filter_size", "num_heads", "num_hidden_layers"), 1)
SIZES |= dict.fromkeys([f"num_{stack}_layers" for stack in STACKS], 0)
SIZES |= dict.fromkeys(("attention_key_channels", "attention_value_channels"), 0)
# Their scopes of variables, by our modules.
SUBLAYERS = {"self_attn": "self_attention", "encoder_attn": "encdec_attention", "final": "ffn"}
PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "output_transform"}
FFN = {"fc1": "conv1", "fc2": "conv2"}
TABLES = {"model.encoder.embed_tokens": "input_emb", "model.decoder.embed_tokens": "target_emb", "lm_head": "softmax"}


def load_t2t(folder: Path, target_space_id: int | None = None) -> VaswaniForConditionalGeneration:
    """Read a folder of tensor2tensor: `from_t2t` of its newest checkpoint.

    Parameters
    ----------
    folder : Path
        With ``hparams.json`` and either a checkpoint of TensorFlow or ``variables.npz``, its variables by name.
    target_space_id : int or None, default=None
        As for `from_t2t`.

    Raises
    ------
    UserError
        If a file is missing or broken, TensorFlow is needed and not installed, or this is not our Transformer.
    """
    try:
        hparams = dict(json.loads((folder / HPARAMS).read_text(encoding="utf-8")))
        variables = _read_variables(folder)
    except UserError:
        raise
    except (OSError, EOFError, ValueError, TypeError, BadZipFile, zlib.error, RuntimeError) as error:
        raise UserError(
            f"model={str(folder)!r} must be a folder with {HPARAMS} and a checkpoint of tensor2tensor: "
            f"{first_line(error)}"
        ) from error
    return from_t2t(variables, hparams, target_space_id)


def _read_variables(folder: Path) -> dict[str, np.ndarray]:
    if (folder / VARIABLES).exists():
        with np.load(folder / VARIABLES) as variables:
            return dict(variables)
    train = require("tensorflow", "a checkpoint of tensor2tensor", "tensor2tensor").train
    reader = train.load_checkpoint(str(folder))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def from_t2t(
    variables: dict[str, np.ndarray], hparams: dict[str, Any], target_space_id: int | None = None
) -> VaswaniForConditionalGeneration:
    """Return our Transformer that gives the same logits up to rounding, for as many positions as its config names.

    Parameters
    ----------
    variables : dict of str to array
        As a checkpoint names them; those of training, such as Adam's, are left out.
    hparams : dict
        Settings of the model, under tensor2tensor's names.
    target_space_id : int or None, default=None
        Row of ``target_space_embedding``, where the model has it.

    Raises
    ------
    UserError
        Naming what our Transformer cannot be.
    """
    present = SimpleNamespace(**{name: hparams.get(name, values[0]) for name, values in PAPERS_HPARAMS.items()})
    refuse_others(present, **PAPERS_HPARAMS)
    theirs = _weights(variables)
    space = _target_space(theirs.pop("target_space_embedding/kernel", None), target_space_id)
    ours = VaswaniForConditionalGeneration(_config(theirs, hparams)).eval()
    timing = timing_signal(ours.config.max_position_embeddings, ours.config.d_model)
    tables = {"encoder": timing + space, "decoder": timing}
    names = {name: their_name(name, theirs) for name in ours.state_dict() if "embed_positions" not in name}
    _check_is_all(names.values(), theirs)
    state = {f"model.{stack}.embed_positions.weight": table for stack, table in tables.items()}
    state |= {name: theirs[other].T if other.endswith("kernel") else theirs[other] for name, other in names.items()}
    try:
        ours.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"hparams do not fit the variables: {str(error).splitlines()[-1].strip()}") from error
    return ours


def _weights(variables: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return the model's variables, without the prefixes of their names, and tables of embeddings in one piece."""
    found: dict[str, torch.Tensor] = {}
    shards: dict[str, dict[int, torch.Tensor]] = {}
    vocabularies = set()
    for name, value in variables.items():
        match = re.fullmatch(r"(?!training/)(?:.*/)?(body|symbol_modality_\d+_\d+)/(.+)", name)
        if match is None or "/Adam" in name:
            continue
        weight = torch.from_numpy(np.asarray(value, np.float32))
        if match[1] == "body":
            found[match[2]] = weight
        else:
            vocabularies.add(match[1])
            table, _, number = match[2].partition("/weights_")
            shards.setdefault(table, {})[int(number)] = weight
    if len(vocabularies) > 1:
        raise UserError(f"variables {' and '.join(sorted(vocabularies))} must be of one vocabulary: ours has one")
    return found | {table: torch.cat([parts[i] for i in sorted(parts)]) for table, parts in shards.items()}


def _target_space(table: torch.Tensor | None, row: int | None) -> torch.Tensor:
    """Return what the encoder adds to every position."""
    if table is None:
        if row is not None:
            raise UserError(f"target_space_id={row} must be left out: the model has no target_space_embedding")
        return torch.zeros(1)
    if row is None or not 0 <= row < len(table):
        raise UserError(
            f"target_space_id={row} must be a row of target_space_embedding, from 0 to {len(table) - 1}: 0 for "
            "translation since tensor2tensor 1.5.2; before, 8 for German, 9 for German of BPE, 6 for French"
        )
    return table[row]


def _config(theirs: dict[str, torch.Tensor], hparams: dict[str, Any]) -> VaswaniConfig:
    """Return the config of ours that says the same.

    Raises
    ------
    UserError
        If a setting has a value that is not allowed, or there is no table of embeddings.
    """
    _check_sizes(hparams)
    heads, width = hparams["num_heads"], hparams["hidden_size"]
    tables = [theirs[name] for name in ("shared", *TABLES.values()) if name in theirs]
    if not tables:
        raise UserError("variables must have a table of embeddings: symbol_modality_V_D/shared/weights_0")
    layers = {
        f"{stack}_layers": hparams.get(f"num_{stack}_layers") or hparams["num_hidden_layers"] for stack in STACKS
    }
    try:
        return VaswaniConfig(
            vocab_size=len(tables[0]),
            d_model=width,
            **layers,
            **{f"{stack}_attention_heads": heads for stack in STACKS},
            **{f"{stack}_ffn_dim": hparams["filter_size"] for stack in STACKS},
            head_dim=(hparams.get("attention_key_channels") or width) // heads,
            v_head_dim=(hparams.get("attention_value_channels") or width) // heads,
            dropout=hparams.get("layer_prepostprocess_dropout", 0.1),
            attention_dropout=hparams.get("attention_dropout", 0.0),
            activation_dropout=hparams.get("relu_dropout", 0.0),
            attention_bias=False,
            layer_norm_eps=hparams.get("norm_epsilon", 1e-6),
            position_embedding_type="learned",
            pad_token_id=PAD,
            eos_token_id=EOS,
            tie_word_embeddings="softmax" not in theirs,
        )
    except (ValueError, StrictDataclassError) as error:
        raise UserError(
            f"{HPARAMS} must describe what our Transformer can be: {' '.join(str(error).split())}"
        ) from error


def _check_sizes(hparams: dict[str, Any]) -> None:
    for name, least in SIZES.items():
        value = hparams.get(name) or 0
        if not isinstance(value, int) or value < least:
            raise UserError(f"{name}={hparams.get(name)!r} must be a whole number of at least {least} in {HPARAMS}")


def timing_signal(length: int, width: int) -> torch.Tensor:
    """Return tensor2tensor's sinusoids: sines, then cosines, whose wavelengths end at 10000 exactly.

    Returns
    -------
    Tensor of shape (length, width)
        In the paper channels 2i and 2i + 1 have the rate 10000^(-2i/D); here i and D/2 + i have 10000^(-i/(D/2 - 1)).
    """
    rates = torch.exp(torch.arange(width // 2) * -(math.log(10_000) / max(width // 2 - 1, 1)))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def their_name(name: str, theirs: Container[str]) -> str:
    """Return what tensor2tensor calls our weight of this name, without prefixes, where `theirs` are all its names."""
    module, _, kind = name.rpartition(".")
    if "layers" not in module:
        own = TABLES.get(module, "shared")
        return own if own in theirs else "shared" if "shared" in theirs else "input_emb"
    _, stack, _, layer, *path = module.split(".")
    scope = f"{stack}/layer_{layer}"
    if path[-1] in PROJECTIONS:
        return f"{scope}/{SUBLAYERS[path[0]]}/multihead_attention/{PROJECTIONS[path[-1]]}/kernel"
    if path[-1] in FFN:
        return f"{scope}/ffn/{FFN[path[-1]]}/{'kernel' if kind == 'weight' else 'bias'}"
    sublayer = SUBLAYERS[path[-1].removesuffix("_layer_norm")]
    return f"{scope}/{sublayer}/layer_postprocess/layer_norm/layer_norm_{'scale' if kind == 'weight' else 'bias'}"


def _check_is_all(needed: Iterable[str], there: Iterable[str]) -> None:
    """Refuse a checkpoint that lacks a variable, or has one for which our Transformer has no place."""
    missing, unknown = sorted(set(needed) - set(there)), sorted(set(there) - set(needed))
    if missing:
        raise UserError(f"variable {missing[0]!r} must be in the checkpoint (has it another architecture?)")
    if unknown:
        raise UserError(f"variable {unknown[0]!r} must not be in the checkpoint: our Transformer has no such weight")
