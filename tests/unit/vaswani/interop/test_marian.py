"""Our models as MarianMT and back: tests/parity/test_against_marian.py is the control, with no channel moved."""

import pytest
import torch
from opus_model import random_weights
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel

from training.settings import ROOT
from vaswani.errors import UserError
from vaswani.interop.marian import (
    check_has_marian,
    check_saves_as_marian,
    from_marian,
    save_as_marian,
    stock_length_penalty,
    to_marian,
)
from vaswani.models.modeling_recurrent import RecurrentConfig
from vaswani.tokenization import train_tokenizer


TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
VARIANTS = [
    {},
    {"encoder_attention_heads": 4, "decoder_ffn_dim": 48, "encoder_layers": 1, "head_dim": None},
    {"attention_bias": False},
    {"tie_word_embeddings": False},
    {"position_embedding_type": "learned", "max_position_embeddings": 30},
    {"activation_function": "swish", "lm_head_bias": True},
    {"layer_norm_eps": 0.1},
]
OPUS = {"activation_function": "swish", "scale_embedding": True, "d_model": 16, "vocab_size": 23}
OPUS |= {"pad_token_id": 22, "decoder_start_token_id": 22, "eos_token_id": 0, "forced_eos_token_id": 0}
OPUS |= {"max_position_embeddings": 64, "normalize_before": False, "static_position_embeddings": True}
for STACK in ("encoder", "decoder"):
    OPUS |= {f"{STACK}_layers": 2, f"{STACK}_attention_heads": 4, f"{STACK}_ffn_dim": 32}


def logits_of(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits[..., :-1]  # without <pad>


def opus_model(**changes):
    """Return a model as OPUS-MT's are, of random weights, with a bias for each type."""
    model = random_weights(MarianMTModel(MarianConfig(**OPUS | changes)).eval())
    with torch.no_grad():
        model.final_logits_bias.normal_()
        model.model.decoder.embed_tokens.weight[22] = 0
    return model


@pytest.mark.smoke
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_both_ways_keep_the_logits(random_model, batch, variant):
    ours = random_model(**variant)
    inputs = batch(ours.config)
    marian = to_marian(ours)
    back = from_marian(marian)
    torch.testing.assert_close(logits_of(marian, inputs), logits_of(ours, inputs), **TOLERANCE)
    torch.testing.assert_close(logits_of(back, inputs), logits_of(ours, inputs), **TOLERANCE)
    assert back.config.lm_head_bias == ours.config.lm_head_bias
    assert back.config.position_embedding_type == ours.config.position_embedding_type
    weights = back.state_dict()
    for name, weight in ours.state_dict().items():
        assert torch.equal(weights[name], weight) or name == "model.shared.weight", name


def test_without_moving_channels_the_logits_are_others(random_model, batch):
    ours = random_model()
    inputs, marian = batch(ours.config), to_marian(ours)
    weights = ours.state_dict() | {name: w for name, w in marian.state_dict().items() if "positions" in name}
    marian.load_state_dict(weights | {"final_logits_bias": marian.final_logits_bias})
    assert (logits_of(marian, inputs) - logits_of(ours, inputs)).abs().max() > 0.1


def test_an_embedding_of_pad_counts_for_nothing(random_model, batch):
    ours = random_model()
    with torch.no_grad():
        ours.lm_head.weight[22] = 3.0
    inputs = batch(ours.config)
    torch.testing.assert_close(logits_of(to_marian(ours), inputs), logits_of(ours, inputs), **TOLERANCE)


@pytest.mark.smoke
def test_a_saved_folder_needs_nothing_of_ours(random_model, batch, tmp_path):
    tokenizer = train_tokenizer(["one two three four five six"], 265)
    ours = random_model(vocab_size=265)
    ours.generation_config.length_penalty_alpha = 1.2
    save_as_marian(ours, tokenizer, tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is MarianMTModel
    assert not list(tmp_path.glob("*.py"))
    assert "vaswani" not in (tmp_path / "config.json").read_text()
    inputs = batch(ours.config)
    torch.testing.assert_close(logits_of(loaded, inputs), logits_of(ours, inputs), **TOLERANCE)
    assert AutoTokenizer.from_pretrained(tmp_path)("two six").input_ids == tokenizer("two six").input_ids
    settings = loaded.generation_config
    assert (settings.num_beams, settings.length_penalty, settings.suppress_tokens) == (4, 1.0, [264])
    assert (settings.decoder_start_token_id, settings.eos_token_id, settings.max_length) == (264, 0, 512)
    card = (tmp_path / "README.md").read_text()
    assert "length^1.0, where the model\nthat was exported divides by ((5 + length) / 6)^1.2: alike" in card


@pytest.mark.parametrize("p", [None, 2.0])
def test_a_penalty_of_transformers_stays_as_it_is(p, random_model, tmp_path):
    tokenizer, ours = train_tokenizer(["one two three four five six"], 265), random_model(vocab_size=265)
    ours.generation_config.length_penalty_alpha, ours.generation_config.length_penalty = None, p
    save_as_marian(ours, tokenizer, tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert f"length^{p or 1.0}, where the model\nthat was exported divides by the same." in card
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config.length_penalty == (p or 1.0)


def test_other_settings_of_the_search_are_kept(random_model):
    ours = random_model()
    ours.generation_config.no_repeat_ngram_size, ours.generation_config.suppress_tokens = 3, [7]
    settings = to_marian(ours).generation_config
    assert (settings.no_repeat_ngram_size, settings.suppress_tokens, settings.max_length) == (3, [7, 22], 512)
    assert not hasattr(settings, "length_penalty_alpha")
    ours.generation_config.max_new_tokens, ours.generation_config.length_penalty = 9, 1.5
    settings = to_marian(ours).generation_config
    assert (settings.max_new_tokens, settings.max_length, settings.length_penalty) == (9, None, 1.5)
    learned = random_model(position_embedding_type="learned", max_position_embeddings=30)
    learned.generation_config.num_beams = 6
    settings = to_marian(learned).generation_config
    assert (settings.num_beams, settings.max_length) == (6, 30)


def test_the_two_length_penalties_grow_alike_at_25_tokens():
    for alpha in (0.0, 0.6, 1.0):
        p = stock_length_penalty(alpha)
        growth = (30.01 / 30) ** alpha
        assert (25.01 / 25) ** p == pytest.approx(growth, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"head_dim": 4}, "head_dim=4 must be d_model / encoder_attention_heads = 8 here: MarianMT has no other"),
        ({"v_head_dim": 4}, "v_head_dim=4 must be d_model / encoder_attention_heads = 8 here"),
        ({"attention_restriction": 3}, "attention_restriction=3 must be none here: MarianMT cannot"),
    ],
)
def test_what_marian_cannot_be_is_refused(tiny_config, changes, complaint):
    with pytest.raises(UserError, match=complaint):
        check_has_marian(tiny_config(**changes))


def test_all_rows_of_table_3_but_three_have_a_folder_of_marian():
    refused = set()
    for folder in (ROOT / "hub_configs").iterdir():
        config = AutoConfig.from_pretrained(str(folder))
        try:
            check_saves_as_marian(config)
        except UserError:
            refused.add(folder.name)
    others = {"convolutional-en-de", "convs2s-en-de", "recurrent-attention-en-de", "recurrent-en-de"}
    assert refused == others | {"B-k16", "B-k32", "E-learned"}


def test_models_of_other_types_and_learned_positions_are_refused(tiny_config):
    with pytest.raises(UserError, match="model_type='recurrent' must be 'vaswani' here: MarianMT"):
        check_has_marian(RecurrentConfig())
    check_saves_as_marian(tiny_config())
    with pytest.raises(UserError, match="position_embedding_type='learned' must be 'sinusoidal' here"):
        check_saves_as_marian(tiny_config(position_embedding_type="learned"))


@pytest.mark.smoke
@pytest.mark.parametrize("changes", [{}, {"activation_function": "silu"}, {"activation_function": "relu"}], ids=str)
def test_a_model_of_opus_becomes_ours(batch, changes):
    theirs = opus_model(**changes)
    ours = from_marian(theirs)
    inputs = batch(ours.config)
    torch.testing.assert_close(logits_of(ours, inputs), logits_of(theirs, inputs), **TOLERANCE)
    assert ours.config.position_embedding_type == "sinusoidal"
    del inputs["labels"]
    settings = {"num_beams": 1, "max_new_tokens": 20, "suppress_tokens": [22], "forced_eos_token_id": None}
    mine, other = (model.generate(**inputs, **settings) for model in (ours, theirs))
    assert torch.equal(mine, other)
    in_bfloat16 = ours.bfloat16().generate(**inputs, num_beams=2, max_new_tokens=5)  # packed, with a bias
    assert in_bfloat16.shape[0] == 4


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"activation_function": "gelu"}, "activation_function='gelu' must be 'relu' or 'swish' or 'silu' here"),
        ({"scale_embedding": False}, "scale_embedding=False must be True here: our Transformer has nothing else"),
        ({"encoder_layerdrop": 0.1}, "encoder_layerdrop=0.1 must be 0 here"),
        ({"share_encoder_decoder_embeddings": False}, "tie_word_embeddings=True must be False here"),
    ],
)
def test_what_we_cannot_be_is_refused(changes, complaint):
    with pytest.raises(UserError, match=complaint):
        from_marian(opus_model(**changes))


def test_a_start_that_is_not_zero_is_refused():
    theirs = opus_model()
    with torch.no_grad():
        theirs.model.decoder.embed_tokens.weight[22] = 1.0
    with pytest.raises(UserError, match="pad_token_id=22 must have an embedding of zeros: ours has no other"):
        from_marian(theirs)
