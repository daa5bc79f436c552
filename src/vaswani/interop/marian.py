"""Our Transformer as transformers' MarianMT, and back: the same model, except for the order of the channels.

Section 3.5 interleaves sines and cosines; Marian has all sines before all cosines, of the same wavelengths. Whatever
is added to the positions, reads the sum or normalizes it takes Marian's order of channels: nothing is approximated.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedTokenizerBase

from vaswani.errors import UserError
from vaswani.models.configuration_vaswani import VaswaniConfig
from vaswani.models.decoding_vaswani import PAPERS_DECODING, DecodingSettings, wishes
from vaswani.models.modeling_vaswani import VaswaniForConditionalGeneration, sinusoids


# Fields of both configs that mean the same; FSMT's, too.
SAME_FIELDS = (
    "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
    "encoder_ffn_dim", "decoder_ffn_dim", "dropout", "attention_dropout", "activation_dropout", "vocab_size",
    "pad_token_id", "eos_token_id", "decoder_start_token_id", "max_position_embeddings", "tie_word_embeddings",
)  # fmt: skip
ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish"}  # Marian's names, and ours
# Tokens of the longest translation, as in OPUS-MT's models: stock search knows no limit by the length of the source.
MAX_LENGTH = 512
# Tokens of a translation at which stock search is to prefer a longer one as much as the paper's does.
TYPICAL_LENGTH = 25
QUANTIZATIONS = ("float32",)  # transformers casts at load
README = """---
library_name: transformers
pipeline_tag: translation
---

A Transformer ("Attention Is All You Need", 2017) in the format of transformers' `MarianMTModel`: the same logits as
the model that it was exported from, and the same translations of greedy search.

    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")

What differs is beam search, which is transformers' own. It divides log-probabilities by length^{p}, where the model
that was exported divides {penalty}. It ends a translation after {max_length} tokens, where the paper allows 50 more
than the source has.
"""
PAPERS_PENALTY = """by ((5 + length) / 6)^{alpha}: alike for translations of 25 tokens, and more in favour of short
ones than the paper for longer"""


def to_marian(ours: VaswaniForConditionalGeneration) -> MarianMTModel:
    """Return transformers' MarianMT that gives the same logits up to rounding, except for that of ``<pad>``.

    A learned position table takes the place of Marian's, and another `layer_norm_eps` that of its layers. But Marian
    saves neither: `check_saves_as_marian`.

    Raises
    ------
    UserError
        If Marian cannot be this model.
    """
    config = marian_config(ours.config)
    marian = MarianMTModel(config).eval()
    for module in marian.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = ours.config.layer_norm_eps
    order, weights = channel_order(ours.config), ours.state_dict()

    def weight_of(name: str, theirs: torch.Tensor) -> torch.Tensor:
        if name == "final_logits_bias":
            return weights.get("lm_head.bias", theirs[0])[None]
        if name.endswith("embed_positions.weight"):
            return weights.get(name, theirs)  # the table of sinusoids is Marian's own
        if name not in weights:
            return torch.zeros_like(theirs)  # the bias of an attention that has none
        is_embedding = name.endswith(("shared.weight", "embed_tokens.weight"))
        weight = reordered(name, weights[name], order)
        if is_embedding or (name == "lm_head.weight" and config.tie_word_embeddings):
            # Our <pad> is embedded as zero whatever its row is, and Marian's decoder starts from it.
            weight = weight.index_fill(0, torch.tensor(config.pad_token_id), 0)
        return weight

    marian.load_state_dict({name: weight_of(name, theirs) for name, theirs in marian.state_dict().items()})
    marian.generation_config = stock_generation_config(ours)
    return marian


def marian_config(config: VaswaniConfig) -> MarianConfig:
    """Return the config of the same architecture, or refuse a model that Marian cannot be."""
    check_has_marian(config)
    return MarianConfig(
        **{name: getattr(config, name) for name in SAME_FIELDS},
        activation_function=config.activation_function,
        scale_embedding=True,
        share_encoder_decoder_embeddings=config.tie_word_embeddings,
        forced_eos_token_id=None,
    )


def save_as_marian(
    ours: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    quantization: str = QUANTIZATIONS[0],
) -> None:
    """Write the folder that transformers alone loads, model and tokenizer, in float32.

    Raises
    ------
    UserError
        If such a folder cannot be this model.
    """
    assert quantization in QUANTIZATIONS
    check_saves_as_marian(ours.config)
    marian = to_marian(ours)
    marian.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    p = marian.generation_config.length_penalty
    alpha = DecodingSettings.read({}, None, ours.generation_config).length_penalty_alpha
    penalty = "by the same" if alpha is None else PAPERS_PENALTY.format(alpha=alpha)
    (folder / "README.md").write_text(README.format(p=p, penalty=penalty, max_length=MAX_LENGTH), encoding="utf-8")


def from_marian(marian: MarianMTModel) -> VaswaniForConditionalGeneration:
    """Return our Transformer that gives the same logits up to rounding.

    Raises
    ------
    UserError
        Naming what our Transformer cannot be.
    """
    check_is_ours(marian)
    theirs, is_sinusoidal = marian.config, has_sinusoids(marian)
    config = VaswaniConfig(
        **{name: getattr(theirs, name) for name in SAME_FIELDS},
        activation_function=ACTIVATIONS[theirs.activation_function],
        layer_norm_eps=marian.model.encoder.layers[0].final_layer_norm.eps,
        lm_head_bias=bool(marian.final_logits_bias.any()),
        position_embedding_type="sinusoidal" if is_sinusoidal else "learned",
    )
    ours = VaswaniForConditionalGeneration(config).eval()
    order, weights = channel_order(config).argsort(), marian.state_dict()
    weights["lm_head.bias"] = weights["final_logits_bias"][0]
    weights.setdefault("model.shared.weight", weights["model.encoder.embed_tokens.weight"])
    ours.load_state_dict({name: reordered(name, weights[name], order) for name in ours.state_dict()})
    return ours


def channel_order(config: VaswaniConfig) -> torch.Tensor:
    """Return which of our channels stands where in Marian: the even ones, then the odd; a learned table needs none."""
    channels = torch.arange(config.d_model)
    return channels if config.position_embedding_type == "learned" else torch.cat([channels[::2], channels[1::2]])


def reordered(name: str, weight: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Put the channels of the residual stream in another order, where the weight of this name has them.

    Parameters
    ----------
    name : str
        Which tells whether the weight reads the stream (its last axis), or writes or normalizes it (its first).
    weight : Tensor
    order : Tensor of shape (D,)
    """
    module, kind = name.split(".")[-2:]
    if module in ("out_proj", "fc2") or module.endswith("layer_norm"):
        return weight[order]
    is_reader = module in ("q_proj", "k_proj", "v_proj", "fc1") or module in ("shared", "embed_tokens", "lm_head")
    return weight[:, order] if is_reader and kind == "weight" else weight


def stock_generation_config(ours: VaswaniForConditionalGeneration) -> GenerationConfig:
    """Return the settings by which transformers' own search comes nearest to that of `ours`."""
    kept = {name: value for name, value in wishes(ours.generation_config).items() if name not in PAPERS_DECODING}
    settings = DecodingSettings.read({}, None, ours.generation_config)
    if settings.length_penalty_alpha is not None:
        kept["length_penalty"] = stock_length_penalty(settings.length_penalty_alpha)
    elif kept.get("length_penalty") is None:
        kept["length_penalty"] = 1.0  # transformers' own
    if settings.extra_target_tokens is not None:
        kept["max_length"] = min(MAX_LENGTH, ours.config.max_position_embeddings)
    kept["num_beams"] = ours.generation_config.num_beams or PAPERS_DECODING["num_beams"]
    kept["suppress_tokens"] = sorted({*settings.suppress_tokens, ours.config.pad_token_id})
    ids = {name: getattr(ours.config, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    return GenerationConfig(**kept | ids)


def stock_length_penalty(alpha: float) -> float:
    """Return p for which length^p grows at a typical length as ((5 + length) / 6)^alpha does: their slopes of log."""
    return round(alpha * TYPICAL_LENGTH / (TYPICAL_LENGTH + 5), 3)


def check_has_marian(config: Any) -> None:
    """Refuse a model that Marian cannot be."""
    if config.model_type != "vaswani":
        raise UserError(f"model_type={config.model_type!r} must be 'vaswani' here: MarianMT is a Transformer")
    if config.attention_restriction is not None:
        raise UserError(
            f"attention_restriction={config.attention_restriction} must be none here: MarianMT cannot "
            "restrict self-attention"
        )
    for stack in ("encoder", "decoder"):
        heads = getattr(config, f"{stack}_attention_heads")
        for name, width in (("head_dim", config.head_dim), ("v_head_dim", config.v_head_dim)):
            if width is not None and width * heads != config.d_model:
                raise UserError(
                    f"{name}={width} must be d_model / {stack}_attention_heads = {config.d_model / heads:g} here: "
                    "MarianMT has no other"
                )


def check_saves_as_marian(config: VaswaniConfig) -> None:
    """Refuse a model that a folder of Marian cannot hold, though Marian in memory could be it."""
    check_has_marian(config)
    if config.position_embedding_type == "learned":
        raise UserError(
            "position_embedding_type='learned' must be 'sinusoidal' here: MarianMT computes its table of positions "
            "and saves none"
        )
    if config.layer_norm_eps != VaswaniConfig.layer_norm_eps:
        raise UserError(
            f"layer_norm_eps={config.layer_norm_eps} must be {VaswaniConfig.layer_norm_eps} here: MarianMT saves no "
            "other"
        )


def check_is_ours(marian: MarianMTModel) -> None:
    """Refuse a MarianMT that our Transformer cannot be."""
    config = marian.config
    refuse_others(
        config,
        activation_function=tuple(ACTIVATIONS),
        scale_embedding=(True,),
        encoder_layerdrop=(0,),
        decoder_layerdrop=(0,),
        decoder_vocab_size=(config.vocab_size,),
        tie_word_embeddings=(config.share_encoder_decoder_embeddings,),
    )
    if marian.model.decoder.embed_tokens.weight[config.pad_token_id].any():
        raise UserError(f"pad_token_id={config.pad_token_id} must have an embedding of zeros: ours has no other")


def refuse_others(config: Any, **allowed: tuple[Any, ...]) -> None:
    """Refuse a config one of whose fields has none of the allowed values."""
    for name, values in allowed.items():
        if getattr(config, name) not in values:
            raise UserError(
                f"{name}={getattr(config, name)!r} must be {' or '.join(map(repr, values))} here: our Transformer has "
                "nothing else"
            )


def has_sinusoids(marian: MarianMTModel) -> bool:
    """Tell whether both position tables are those of section 3.5, in Marian's order."""
    stacks = (marian.model.encoder, marian.model.decoder)
    tables = [stack.embed_positions.weight.detach() for stack in stacks]
    exact = sinusoids(torch.arange(len(tables[0])), tables[0].shape[1])
    exact = torch.cat([exact[:, ::2], exact[:, 1::2]], dim=1)
    return all(torch.allclose(table.double(), exact.double(), atol=1e-4) for table in tables)
