"""Smaller models in the proportions of large ones: how a table of the paper fits a small machine."""

import json
from fractions import Fraction
from pathlib import Path

from vaswani.errors import UserError
from vaswani.files import write_text
from vaswani.models.configuration_vaswani import TranslatorConfig


# By model type: the fields that are widths, those that count layers, and those that have an entry for each layer.
WIDTHS = {
    "vaswani": ("d_model", "encoder_ffn_dim", "decoder_ffn_dim", "head_dim", "v_head_dim"),
    "recurrent": ("d_model",),
    "convolutional": ("d_model", "encoder_channels", "decoder_channels"),
}
LAYERS = {"vaswani": ("encoder_layers", "decoder_layers"), "recurrent": ("num_layers",), "convolutional": ()}
BY_LAYER = {
    "vaswani": (),
    "recurrent": (),
    "convolutional": ("encoder_channels", "decoder_channels", "encoder_kernel_sizes", "decoder_kernel_sizes"),
}


def scale_config(config: TranslatorConfig, scale: float) -> TranslatorConfig:
    """Make a model smaller, so that those of a table keep their ratios.

    Every width is multiplied by `scale`; the number of heads stays. Layers are halved at any scale below 1: for Table
    3, 1, 2, 3, 4 are the smallest whole numbers in the ratio of 2, 4, 6, 8. Of a list of layers, every second stays,
    from the first on.

    Parameters
    ----------
    config : TranslatorConfig
    scale : float
        A multiple of 1/16, since Table 3's smallest width is 16; at most 1.

    Raises
    ------
    UserError
        If `scale` is another number, or a width would not be whole.
    """
    if not 0 < scale <= 1 or Fraction(scale) * 16 % 1:
        raise UserError(
            f"scale={scale:g} must be a multiple of 1/16 = 0.0625 and at most 1, so that widths stay whole"
        )
    fields, kind = config.to_diff_dict(), config.model_type
    for name in WIDTHS[kind]:
        value = getattr(config, name)
        if isinstance(value, list):
            fields[name] = [_whole(name, width, scale) for width in value]
        elif value is not None:
            fields[name] = _whole(name, value, scale)
    if scale < 1:
        fields |= {name: max(1, getattr(config, name) // 2) for name in LAYERS[kind]}
        fields |= {name: fields.get(name, getattr(config, name))[::2] for name in BY_LAYER[kind]}
    return type(config)(**fields)


def _whole(name: str, width: int, scale: float) -> int:
    scaled = width * Fraction(scale)
    if scaled.denominator > 1:
        raise UserError(f"scale={scale:g} would make {name}={width} a fraction, {float(scaled)}: choose another scale")
    return int(scaled)


def write_scaled_config(config: TranslatorConfig, scale: float, folder: Path) -> None:
    """Write a scaled config, and its generation config, into a folder that run.py can train from.

    The folder from which the whole model's `config` was loaded says which keys are declared, and how to decode.

    Raises
    ------
    UserError
        If the folder holds the model at another scale, which may have been trained.
    """
    source = Path(config.name_or_path)
    declared = json.loads((source / "config.json").read_text(encoding="utf-8"))
    scaled = scale_config(config, scale)
    fields = {name: getattr(scaled, name, value) for name, value in declared.items()}
    decoding = (source / "generation_config.json").read_text(encoding="utf-8")
    path, text = folder / "config.json", json.dumps(fields, indent=2) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise UserError(f"{folder} holds the row at another scale than {scale:g}: choose another output_dir")
    write_text(path, text)
    write_text(folder / "generation_config.json", decoding)
