"""Configuration of the original Transformer (Vaswani et al. 2017).

The fields are what the paper names or what its Table 3 varies, under the names that transformers uses; the defaults
are the base model. Training choices (label smoothing, schedule, batch size) belong to the training recipe.
"""

import math
from typing import ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .trees_vaswani import TREES


@strict
class TranslatorConfig(PreTrainedConfig):
    """The fields of every model here; each model's own config says what they mean for it.

    Notes
    -----
    A saved config holds `auto_map` and `custom_pipelines`: with them its folder works without the package.
    """

    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # one and the same, see `cache_vaswani`
    _auto_class = "AutoConfig"
    # Where the published code has the classes, by the Auto class that loads them.
    _auto_map: ClassVar[dict[str, str]] = {}

    vocab_size: int = 37000
    d_model: int = 512
    dropout: float | int = 0.1
    source_lang: str | None = None
    target_lang: str | None = None
    pad_token_id: int | None = None
    eos_token_id: int | list[int] | None = 0
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    is_encoder_decoder: bool = True
    use_cache: bool = True

    def __post_init__(self, **kwargs):
        # Validated here too, so that construction raises a plain ValueError rather than the wrapper of @strict.
        self.validate_architecture()
        if self.pad_token_id is None:
            self.pad_token_id = self.vocab_size - 1
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.pad_token_id
        ends = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        ids = [("pad_token_id", self.pad_token_id), ("decoder_start_token_id", self.decoder_start_token_id)]
        for name, token in ids + [("eos_token_id", end) for end in ends if end is not None]:
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"{name}={token} must be an id below vocab_size={self.vocab_size}")
        for other, name in self.attribute_map.items():
            given, default = getattr(self, name), getattr(type(self), name)
            if given not in (default, kwargs.get(other, given)):
                raise ValueError(f"{name}={given} and {other}={kwargs[other]} are one field: give one of them")
        if not __name__.startswith("transformers_modules"):
            # The installed package registers the pipeline; `pipeline()` would ask for trust where it sees this key.
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)

    def validate_architecture(self):
        """Check the ranges of all fields; part of the validation that transformers runs on construction and saving."""
        self.check_at_least_1("vocab_size", "d_model")
        self.check_fractions("dropout")

    @classmethod
    def architecture_fields(cls) -> list[str]:
        """Return the names of its own fields, without those of every config of transformers."""
        kinds = [kind for kind in cls.__mro__ if issubclass(kind, TranslatorConfig)]
        return [name for kind in reversed(kinds) for name in kind.__annotations__ if not name.startswith("_")]

    def check_at_least_1(self, *names: str) -> None:
        """Refuse fields below 1."""
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")

    def check_fractions(self, *names: str) -> None:
        """Refuse fields outside of [0, 1)."""
        for name in names:
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be in [0, 1)")

    def to_dict(self):
        """Return the fields with `auto_map` and `custom_pipelines`: with them a saved folder needs no package."""
        tasks, implementation = ["translation"], "pipeline_vaswani.TranslationPipeline"
        if self.target_lang == TREES:
            tasks, implementation = ["parse"], "parsing_vaswani.ParsingPipeline"
        elif self.source_lang and self.target_lang:
            tasks.append(f"translation_{self.source_lang}_to_{self.target_lang}")
        pipeline = {"impl": implementation, "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
        return super().to_dict() | {
            "auto_map": dict(self._auto_map),
            "custom_pipelines": {task: dict(pipeline) for task in tasks},
        }


@strict
class VaswaniConfig(TranslatorConfig):
    """Hyper-parameters of one model; the defaults are Table 3's "base" row.

    Parameters
    ----------
    vocab_size : int, default=37000
        V, entries of the vocabulary that both languages share (section 5.1).
    d_model : int, default=512
        Width of every embedding and every sub-layer output (section 3.1). Must be even if positions are sinusoidal.
    encoder_layers, decoder_layers : int, default=6
        N, layers of each stack (section 3.1).
    encoder_attention_heads, decoder_attention_heads : int, default=8
        h, heads of each attention (section 3.2.2).
    head_dim : int or None, default=None
        d_k, width of a query and a key of one head. None means ``d_model / h`` (section 3.2.2).
    v_head_dim : int or None, default=None
        d_v, width of a value of one head. None means the same as d_k; Table 3 (B) has d_k of 16 and 32 with d_v of 64.
    encoder_ffn_dim, decoder_ffn_dim : int, default=2048
        d_ff, inner width of the feed-forward networks (section 3.3).
    dropout : float, default=0.1
        P_drop, on the sums of embedding and position and on each sub-layer's output (section 5.4), in [0, 1).
    attention_dropout, activation_dropout : float, default=0.0
        Dropout on attention weights and after the ReLU, in [0, 1). The paper has none in translation, and that of
        attention in parsing (section 6.3); its code has both, set to 0 for translation.
    activation_function : {"relu", "swish"}, default="relu"
        Between the two matrices of the feed-forward networks: ReLU, Eq. 2 of section 3.3. OPUS-MT's models have swish,
        x sigmoid(x), and can be imported.
    attention_bias : bool, default=True
        Whether the four projections of attention have biases. The paper writes none, but its code of June 2017 had
        them and Table 3's parameter counts need them.
    attention_restriction : int or None, default=None
        r of section 4, "self-attention (restricted)": how many positions self-attention sees from each. In the encoder
        the r around it, for an even r one more before than behind; in the decoder the r last, its own included, as it
        must not look ahead (our reading: the paper does not say). Encoder-decoder attention always sees the whole
        source. None means all positions. Needs ``attn_implementation`` "sdpa", whose time and memory then grow as
        n * r, or "eager", where they grow as n^2.
    layer_norm_eps : float, default=1e-5
        Added to the variance in LayerNorm. The paper names none; this is PyTorch's, and the paper's code had 1e-6, as
        have the models of tensor2tensor that can be imported.
    lm_head_bias : bool, default=False
        Whether the pre-softmax projection has a bias. The paper's has none; OPUS-MT's models have one.
    position_embedding_type : {"sinusoidal", "learned"}, default="sinusoidal"
        Section 3.5, or a trained table instead: Table 3 (E).
    max_position_embeddings : int, default=1024
        Rows of the learned table. Sinusoids have no maximum and ignore it.
    source_lang, target_lang : str or None, default=None
        The direction that the model was trained on, such as "en" and "de"; they name the pipeline's task.
    pad_token_id : int or None, default=None
        ``<pad>``. None means the last id, where our tokenizer puts it (CTranslate2's Marian converter needs it there).
    eos_token_id : int or None, default=0
        ``</s>``, which ends every source and every target.
    bos_token_id : int or None, default=None
        Not used: the decoder starts from a zero vector.
    decoder_start_token_id : int or None, default=None
        Stands before the first target token. None means ``<pad>``, whose embedding is the zero vector.
    tie_word_embeddings : bool, default=True
        One matrix for both embeddings and the pre-softmax projection (section 3.4).
    use_cache : bool, default=True
        Whether decoding keeps keys and values.

    Raises
    ------
    ValueError
        If a field is out of its range; the message names field, value and what is allowed.

    Examples
    --------
    >>> big = VaswaniConfig(d_model=1024, encoder_ffn_dim=4096, decoder_ffn_dim=4096,
    ...                     encoder_attention_heads=16, decoder_attention_heads=16, dropout=0.3)
    >>> big.hidden_size
    1024
    """

    model_type = "vaswani"
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    _auto_map = {
        "AutoConfig": "configuration_vaswani.VaswaniConfig",
        "AutoModel": "modeling_vaswani.VaswaniModel",
        "AutoModelForSeq2SeqLM": "modeling_vaswani.VaswaniForConditionalGeneration",
    }

    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    head_dim: int | None = None
    v_head_dim: int | None = None
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: Literal["relu", "swish"] = "relu"
    attention_bias: bool = True
    attention_restriction: int | None = None
    layer_norm_eps: float = 1e-5
    lm_head_bias: bool = False
    position_embedding_type: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        if self.head_dim is None and self.encoder_attention_heads == self.decoder_attention_heads:
            # transformers reads the width of cached keys from an attribute of this name wherever there is one.
            self.head_dim = self.d_model // self.encoder_attention_heads

    def validate_architecture(self):
        """Check the ranges of all fields; part of the validation that transformers runs on construction and saving."""
        super().validate_architecture()
        names = [
            f"{stack}_{part}" for stack in ("encoder", "decoder") for part in ("layers", "ffn_dim", "attention_heads")
        ]
        optional = ("head_dim", "v_head_dim", "attention_restriction")
        given = (name for name in optional if getattr(self, name) is not None)
        self.check_at_least_1("max_position_embeddings", *names, *given)
        self.check_fractions("attention_dropout", "activation_dropout")
        if not 0 < self.layer_norm_eps < math.inf:
            raise ValueError(f"layer_norm_eps={self.layer_norm_eps} must be a number above 0")
        if self.position_embedding_type == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} must be even for sinusoidal positions: sines and cosines alternate"
            )
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            if self.head_dim is None and self.d_model % getattr(self, name):
                raise ValueError(
                    f"d_model={self.d_model} must be a multiple of {name}={getattr(self, name)} or head_dim given"
                )


__all__ = ["TranslatorConfig", "VaswaniConfig"]
