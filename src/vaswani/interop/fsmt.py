"""transformers' FSMT, to which fairseq's models of WMT were ported, as our Transformer.

Its sinusoids have tensor2tensor's wavelengths rather than the paper's, and begin behind ``<pad>``'s row: they become a
learned table.
"""

import torch
from transformers import FSMTForConditionalGeneration

from vaswani.models.configuration_vaswani import VaswaniConfig
from vaswani.models.modeling_vaswani import VaswaniForConditionalGeneration

from .marian import ACTIVATIONS, SAME_FIELDS, refuse_others


def from_fsmt(fsmt: FSMTForConditionalGeneration) -> VaswaniForConditionalGeneration:
    """Return our Transformer that gives the same logits up to rounding, for as many positions as its config names.

    Raises
    ------
    UserError
        Naming what our Transformer cannot be.
    """
    theirs = fsmt.config
    first = 1 + (theirs.pad_token_id or 0)  # row of the position 0
    refuse_others(
        theirs,
        activation_function=tuple(ACTIVATIONS),
        scale_embedding=(True,),
        encoder_layerdrop=(0,),
        decoder_layerdrop=(0,),
        src_vocab_size=(theirs.tgt_vocab_size,),
    )
    config = VaswaniConfig(
        **{name: getattr(theirs, name) for name in (*SAME_FIELDS, "bos_token_id")},
        activation_function=ACTIVATIONS[theirs.activation_function],
        position_embedding_type="learned",
        source_lang=theirs.langs[0],
        target_lang=theirs.langs[1],
    )
    ours = VaswaniForConditionalGeneration(config).eval()
    weights = fsmt.state_dict()

    def weight_of(name: str, mine: torch.Tensor) -> torch.Tensor:
        if name.endswith("embed_positions.weight"):
            return weights[name][first : first + len(mine)]
        renamed = {
            "lm_head.weight": "model.decoder.output_projection.weight",
            "model.shared.weight": "model.encoder.embed_tokens.weight",
        }
        return weights[renamed.get(name, name)]

    ours.load_state_dict({name: weight_of(name, mine) for name, mine in ours.state_dict().items()})
    return ours
