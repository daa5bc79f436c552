"""transformers' Marian with the weights of a model of ours: what it does with a tool, ours should do too."""

import torch
from transformers import MarianConfig, MarianMTModel

from vaswani.models.modeling_vaswani import sinusoids


def marian_like(config) -> MarianMTModel:
    sizes = ("vocab_size", "d_model", "dropout", "pad_token_id", "eos_token_id", "decoder_start_token_id")
    sizes += tuple(f"{stack}_{size}" for stack in ("encoder", "decoder") for size in ("layers", "ffn_dim"))
    sizes += ("encoder_attention_heads", "decoder_attention_heads", "max_position_embeddings")
    return MarianMTModel(
        MarianConfig(
            **{size: getattr(config, size) for size in sizes},
            activation_function="relu",
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            forced_eos_token_id=None,
        )
    ).eval()


@torch.no_grad()
def copy_positions(marian: MarianMTModel) -> None:
    for stack in (marian.model.encoder, marian.model.decoder):
        table = stack.embed_positions.weight
        table.copy_(sinusoids(torch.arange(len(table)), table.shape[1]))


def marian_twin(ours) -> MarianMTModel:
    """Return Marian with the weights and positions of a model of ours, which gives the same logits."""
    marian = marian_like(ours.config)
    marian.load_state_dict(ours.state_dict(), strict=False)
    copy_positions(marian)
    marian.generation_config = type(ours.generation_config)(
        suppress_tokens=[ours.config.pad_token_id],
        **{name: getattr(ours.config, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")},
    )
    return marian
