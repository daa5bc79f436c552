"""Models of the FSMT family, of random weights, as ours."""

import pytest
import torch
from opus_model import random_weights
from transformers import FSMTConfig, FSMTForConditionalGeneration

from vaswani.errors import UserError
from vaswani.interop.fsmt import from_fsmt
from vaswani.models.modeling_vaswani import sinusoids


TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
WMT = {"langs": ["en", "de"], "src_vocab_size": 23, "tgt_vocab_size": 23, "d_model": 16, "dropout": 0.2}
WMT |= {"max_position_embeddings": 30, "num_beams": 5}
for STACK, FFN in (("encoder", 32), ("decoder", 48)):
    WMT |= {f"{STACK}_layers": 2, f"{STACK}_attention_heads": 4, f"{STACK}_ffn_dim": FFN}


def fsmt_model(**changes):
    """Return a model as those of WMT 2019, of random weights."""
    return random_weights(FSMTForConditionalGeneration(FSMTConfig(**WMT | changes)).eval())


def batch_of():
    input_ids = torch.randint(4, 23, (3, 7))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 5:] = attention_mask[2, 3:] = 0
    return {"input_ids": input_ids.masked_fill(attention_mask == 0, 1), "attention_mask": attention_mask}


@pytest.mark.smoke
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"activation_function": "swish"}], ids=str)
def test_logits_and_greedy_translations_are_theirs(changes):
    theirs = fsmt_model(**changes)
    ours = from_fsmt(theirs)
    inputs, decoder_input_ids = batch_of(), torch.cat([torch.full((3, 1), 2), torch.randint(4, 23, (3, 5))], 1)
    with torch.no_grad():
        mine, other = (
            model(**inputs, decoder_input_ids=decoder_input_ids, use_cache=False).logits for model in (ours, theirs)
        )
    torch.testing.assert_close(mine, other, **TOLERANCE)
    settings = {"num_beams": 1, "max_new_tokens": 15, "suppress_tokens": [1]}
    expected = theirs.generate(**inputs, **settings, forced_eos_token_id=None)
    assert torch.equal(ours.generate(**inputs, **settings), expected)


def test_positions_begin_behind_pad_wherever_it_is():
    theirs, inputs = fsmt_model(pad_token_id=3), batch_of()
    inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 3)
    inputs["decoder_input_ids"] = torch.cat([torch.full((3, 1), 2), torch.randint(4, 23, (3, 5))], 1)
    ours = from_fsmt(theirs)
    with torch.no_grad():
        mine, other = (model(**inputs, use_cache=False).logits for model in (ours, theirs))
    torch.testing.assert_close(mine, other, **TOLERANCE)


def test_the_config_says_what_it_is():
    config = from_fsmt(fsmt_model(attention_dropout=0.3, activation_dropout=0.4)).config
    assert (config.source_lang, config.target_lang, config.vocab_size) == ("en", "de", 23)
    assert (config.pad_token_id, config.eos_token_id, config.bos_token_id, config.decoder_start_token_id) == (
        1,
        2,
        0,
        2,
    )
    assert (config.position_embedding_type, config.max_position_embeddings) == ("learned", 30)
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim) == (32, 48)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.2, 0.3, 0.4)
    assert not config.tie_word_embeddings


def test_its_positions_are_not_the_papers():
    table = from_fsmt(fsmt_model()).model.encoder.embed_positions.weight.detach()
    paper = sinusoids(torch.arange(30), 16)
    assert (table - torch.cat([paper[:, ::2], paper[:, 1::2]], 1)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"src_vocab_size": 24}, "src_vocab_size=24 must be 23 here: our Transformer has nothing else"),
        ({"activation_function": "gelu"}, "activation_function='gelu' must be 'relu' or 'swish'"),
        ({"scale_embedding": False}, "scale_embedding=False must be True here"),
        ({"encoder_layerdrop": 0.2}, "encoder_layerdrop=0.2 must be 0 here"),
        ({"decoder_layerdrop": 0.2}, "decoder_layerdrop=0.2 must be 0 here"),
    ],
)
def test_what_we_cannot_be_is_refused(changes, complaint):
    with pytest.raises(UserError, match=complaint):
        from_fsmt(fsmt_model(**changes))
