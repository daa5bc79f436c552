"""Small ConvS2S models for the tests, in which no two widths or kernel sizes that could be mixed up are equal."""

import torch

from vaswani import ConvolutionalConfig, ConvolutionalForConditionalGeneration


SIZES = {
    "vocab_size": 23,
    "d_model": 16,
    "encoder_channels": [12, 12, 10],
    "encoder_kernel_sizes": [3, 5, 1],
    "decoder_channels": [8, 14, 14],
    "decoder_kernel_sizes": [5, 1, 3],
    "max_position_embeddings": 40,
    "dropout": 0.0,
}


def small_config(**overrides) -> ConvolutionalConfig:
    return ConvolutionalConfig(**SIZES | overrides)


@torch.no_grad()
def small_model(**overrides) -> ConvolutionalForConditionalGeneration:
    """Return a model with gains and biases that show a lost or swapped one: they begin as norms and zeros."""
    model = ConvolutionalForConditionalGeneration(small_config(**overrides)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("gain"):
            parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
        elif "embed" in name:
            parameter.mul_(5)  # or positions and tokens would hardly count beside the biases
        elif parameter.dim() == 1:
            parameter.normal_(0, 0.3)
    return model
