import numpy as np
import pytest
import torch
from opus_model import save_opus
from small_convolutional import small_model
from small_parser import make_parser, make_tokenizer
from transformers import AutoTokenizer

from vaswani import RecurrentConfig, RecurrentForConditionalGeneration
from vaswani.errors import UserError
from vaswani.interop.marian import from_marian
from vaswani.pictures.attention import (
    CROSS,
    DECODER,
    ENCODER,
    Attention,
    head_facts,
    join_words,
    read_attention,
    readable,
)
from vaswani.pictures.attention_page import attention_page
from vaswani.tokenization import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["one two three four", "eins zwei drei vier"] * 3, 286)


@pytest.fixture
def model(random_model):
    return random_model(vocab_size=286, encoder_layers=3, decoder_layers=2, attn_implementation="sdpa")


def test_a_target_is_encoded_as_one(tmp_path):
    """OPUS-MT's tokenizer has another SentencePiece model for it."""
    opus = save_opus(tmp_path / "opus")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "opus")
    found = read_attention(from_marian(opus), tokenizer, "two small dogs .", "zwei klein Hunde .")
    ids = tokenizer(text_target="zwei klein Hunde .").input_ids
    assert ids != tokenizer("zwei klein Hunde .").input_ids
    assert len(found.target) == len(ids)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_the_best_translation_is_read_whatever_the_models_settings_return(num_beams, model, tokenizer):
    how = {"num_beams": num_beams, "max_new_tokens": 5}
    expected = read_attention(model, tokenizer, "one two", **how)
    model.generation_config.update(num_beams=2, return_dict_in_generate=True, num_return_sequences=2)
    assert read_attention(model, tokenizer, "one two", **how).target == expected.target


def test_weights_are_those_of_the_model_which_is_left_as_it_was(model, tokenizer):
    found = read_attention(model, tokenizer, "one two", "eins zwei")
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    source, labels = (tokenizer(text, return_tensors="pt").input_ids for text in ("one two", "eins zwei"))
    expected = model(input_ids=source, labels=labels, output_attentions=True)
    for kind, layers in (
        (ENCODER, expected.encoder_attentions),
        (DECODER, expected.decoder_attentions),
        (CROSS, expected.cross_attentions),
    ):
        assert np.allclose(found.weights[kind], torch.cat(layers).detach().numpy(), atol=1e-6)
        rows, columns = found.labels(kind)
        assert found.weights[kind].shape[2:] == (len(rows), len(columns))
    assert found.weights[ENCODER].shape[:2] == (3, model.config.encoder_attention_heads)
    assert found.source == ["Ġone", "Ġtwo", "</s>"]
    assert (found.inputs, found.target) == (["<start>", "Ġeins", "Ġzwei"], ["Ġeins", "Ġzwei", "</s>"])


def test_dropout_is_off(random_model, tokenizer):
    model = random_model(vocab_size=286, dropout=0.5, attention_dropout=0.5)
    expected = read_attention(model, tokenizer, "one two", "eins").weights[CROSS]
    assert np.array_equal(read_attention(model.train(), tokenizer, "one two", "eins").weights[CROSS], expected)


def test_without_a_target_it_is_what_the_model_translates(model, tokenizer):
    found = read_attention(model, tokenizer, "one two three", max_new_tokens=5, num_beams=2)
    source = tokenizer("one two three", return_tensors="pt").input_ids
    written = model.generate(source, max_new_tokens=5, num_beams=2)[:, 1:]
    model.set_attn_implementation("eager")
    expected = model(input_ids=source, labels=written, output_attentions=True).cross_attentions
    assert np.allclose(found.weights[CROSS], torch.cat(expected).detach().numpy(), atol=1e-6)
    assert len(found.target) == written.shape[1] == 5


def test_a_translation_keeps_its_end_where_the_decoder_starts_from_it_too(tokenizer, random_model):
    """As fairseq's models do, which `vaswani import` takes from FSMT."""
    model = random_model(vocab_size=286, decoder_start_token_id=tokenizer.eos_token_id)
    found = read_attention(model, tokenizer, "one two", max_new_tokens=3, forced_eos_token_id=0, suppress_tokens=[285])
    assert (found.target[-1], len(found.target)) == ("</s>", found.weights[CROSS].shape[2])


@pytest.mark.parametrize("predecessor", ["recurrent", "convolutional"])
def test_predecessors_have_one_head_a_layer_from_target_to_source(predecessor, tokenizer):
    sizes = {"vocab_size": 286, "pad_token_id": 285, "decoder_start_token_id": 285, "eos_token_id": 0}
    if predecessor == "recurrent":
        small = {"d_model": 8, "num_layers": 1, "attention": "additive"}
        model = RecurrentForConditionalGeneration(RecurrentConfig(**sizes | small))
    else:
        model = small_model(**sizes, max_position_embeddings=20)
    found = read_attention(model, tokenizer, "one two", "eins zwei drei")
    assert set(found.weights) == {CROSS}
    assert found.weights[CROSS].shape[1:] == (1, 4, 3)
    assert np.allclose(found.weights[CROSS].sum(-1), 1, atol=1e-5)


def test_a_model_without_attention_and_an_empty_sentence_are_refused(model, tokenizer):
    config = RecurrentConfig(vocab_size=286, d_model=8, num_layers=1, attention="none")
    with pytest.raises(UserError, match="has no attention to show"):
        read_attention(RecurrentForConditionalGeneration(config), tokenizer, "one", "eins")
    with pytest.raises(UserError, match="source=' ' must hold a word"):
        read_attention(model, tokenizer, " ")
    with pytest.raises(UserError, match="target='' must hold a word"):
        read_attention(model, tokenizer, "one", "")


def test_a_sentence_that_a_table_of_positions_does_not_hold_is_refused(tokenizer, random_model):
    model = random_model(vocab_size=286, position_embedding_type="learned", max_position_embeddings=4)
    long = "one two three four five six one two three"
    for given, name in (((long,), "source"), (("one", long), "target")):
        with pytest.raises(UserError, match=rf"^{name} has \d+ tokens: it must have at most the model's 4 positions$"):
            read_attention(model, tokenizer, *given)


def test_pieces_of_characters_and_combining_marks_stay_apart_and_readable(model, tokenizer):
    found = read_attention(model, tokenizer, "a\u0301 日", "ö")
    assert all("\ufffd" not in readable(token) for token in found.source)
    assert len(found.source) == found.weights[ENCODER].shape[-1]
    assert [readable(word) for word in join_words(found).source] == [" a\u0301", " 日", "</s>"]


def made(source: list[str], target: list[str], cross: np.ndarray) -> Attention:
    return Attention(source, ["<start>", *target[:-1]], target, {CROSS: cross[None, None]})


def test_pieces_join_into_words_by_sums_and_means():
    cross = np.array([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3], [0.0, 0.0, 1.0]])
    joined = join_words(made(["Ġun", "do", "</s>"], ["Ġa", "b", "</s>"], cross))
    assert (joined.source, joined.target) == (["Ġundo", "</s>"], ["Ġab", "</s>"])
    assert joined.inputs == ["<start>", "Ġab"]
    assert np.allclose(joined.weights[CROSS][0, 0], [[0.725, 0.275], [0.0, 1.0]])


@pytest.mark.parametrize(
    "pieces",
    [["▁un", "do", "▁für", "</s>"], ["un", "do</w>", "für</w>", "</s>"], ["Ġun", "do", "ĠfÃ¼r", "</s>"]],
    ids=["SentencePiece", "a BPE of words", "a byte-level BPE"],
)
def test_every_vocabulary_has_its_words(pieces):
    joined = join_words(made(pieces, pieces, np.eye(4)))
    assert [readable(word).strip() for word in joined.source] == ["undo", "für", "</s>"]
    assert [readable(word).strip() for word in joined.inputs] == ["<start>", "undo", "für"]
    assert readable("".join(pieces[:3])).split() == ["undo", "für"]
    assert joined.weights[CROSS].shape == (1, 1, 3, 3)


def test_symbols_of_a_parser_are_words_by_themselves():
    found = read_attention(make_parser(), make_tokenizer(), "tea sleeps", "(S (NP (NN) )NP (VP (VBZ) )VP )S")
    assert [readable(word).strip() for word in join_words(found).source] == ["tea", "sleeps", "</s>"]
    assert join_words(found).target == ["(S", "(NP", "(NN)", ")NP", "(VP", "(VBZ)", ")VP", ")S", "</s>"]
    assert '<p dir="auto">(S (NP (NN) )NP (VP (VBZ) )VP )S</p>' in attention_page(found, "")


def test_an_unknown_character_stays_in_its_word(tmp_path):
    opus = save_opus(tmp_path / "opus")
    found = read_attention(from_marian(opus), AutoTokenizer.from_pretrained(tmp_path / "opus"), "two do日gs", "zwei")
    assert [readable(word).strip() for word in join_words(found).source] == ["two", "do<unk>gs", "</s>"]


def test_a_long_sentence_is_joined_at_once():
    """By a loop over words, pieces, pieces and words, this would take hours."""
    pieces = ["Ġa"] * 2000
    joined = join_words(made(pieces, pieces, np.full((2000, 2000), 1 / 2000)))
    assert np.allclose(joined.weights[CROSS], 1 / 2000)


def test_heads_that_do_one_thing_are_named():
    size = 6
    previous = np.eye(size, k=-1)
    previous[0, 0] = 1
    following = np.eye(size, k=1)
    following[-1, -1] = 1
    first, last = np.zeros((2, size, size))
    first[:, 0] = last[:, -1] = 1
    for weights, name in (
        (np.eye(size), "looks at the token itself"),
        (previous, "looks at the previous token"),
        (following, "looks at the next token"),
        (first, "looks at the first token"),
        (last, "looks at the last token"),
        (np.full((size, size), 1 / size), ""),
    ):
        assert head_facts(weights, ENCODER).name == name


def test_the_facts_of_a_head_are_what_they_say():
    uniform = head_facts(np.full((4, 4), 0.25), ENCODER)
    assert (uniform.entropy, uniform.distance) == (2.0, 1.25)
    assert (uniform.itself, uniform.previous, uniform.first, uniform.last) == (0.25, 3 / 16, 0.25, 0.25)
    even = head_facts(np.array([[1.0, 0, 0], [0, 0, 1.0]]), CROSS)
    assert (even.entropy, even.distance, even.previous) == (0.0, 0.0, None)
    assert head_facts(np.array([[0, 0, 1.0], [1.0, 0, 0]]), CROSS).distance == 2.0
    assert head_facts(np.array([[0.5, 0, 0.5]]), CROSS).distance == 1.0  # of a single token, from the first on


def test_the_alignment_is_the_mean_over_layers_and_heads():
    weights = np.random.default_rng(1).dirichlet(np.ones(3), size=(2, 4, 5))
    found = Attention([""] * 3, [""] * 5, [""] * 5, {CROSS: weights})
    assert np.allclose(found.alignment, sum(weights[layer, head] for layer in range(2) for head in range(4)) / 8)
