"""What all models have in common."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from vaswani import RecurrentConfig, RecurrentForConditionalGeneration
from vaswani.models.translator_vaswani import shift_tokens_right


def test_a_model_runs_on_its_own_dummy_inputs(random_model):
    model = random_model()
    assert model(**model.dummy_inputs).logits.shape == (1, 4, model.config.vocab_size)


def test_targets_are_shifted_right_behind_the_start():
    labels = torch.tensor([[3, 4, 0], [5, 0, -100]])
    assert shift_tokens_right(labels, pad_token_id=9, decoder_start_token_id=8).tolist() == [[8, 3, 4], [8, 5, 0]]
    longer = torch.tensor([[0, -100, -100]])
    assert shift_tokens_right(longer, pad_token_id=9, decoder_start_token_id=8).tolist() == [[8, 0, 9]]
    with pytest.raises(ValueError, match="pad_token_id=None in the config"):
        shift_tokens_right(labels, None, 8)


@pytest.mark.parametrize(("field", "value"), [("dropout", 1.5), ("attention_dropout", -0.1)])
def test_a_field_is_checked_that_is_given_where_a_model_is_loaded(field, value, random_model, tmp_path):
    random_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"^{field}={value} must be in \[0, 1\)$"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **{field: value})


def test_what_is_asked_for_comes_from_where_its_name_says(random_model, batch):
    model = random_model(encoder_layers=1, decoder_layers=2)
    model.set_attn_implementation("eager")
    inputs = batch(model.config)
    asked = {"output_attentions": True, "output_hidden_states": True}
    output = model(**inputs, **asked)
    encoded = model.get_encoder()(inputs["input_ids"], inputs["attention_mask"], **asked)
    wanted = {"encoder_last_hidden_state": [encoded.last_hidden_state], "encoder_hidden_states": encoded.hidden_states}
    wanted |= {"encoder_attentions": encoded.attentions}
    decoded = model.model.decoder(
        model.prepare_decoder_input_ids_from_labels(inputs["labels"]),
        encoder_hidden_states=encoded.last_hidden_state,
        encoder_attention_mask=inputs["attention_mask"],
        **asked,
    )
    wanted |= {"decoder_hidden_states": decoded.hidden_states, "decoder_attentions": decoded.attentions}
    wanted |= {"cross_attentions": decoded.cross_attentions}
    given = model(labels=inputs["labels"], attention_mask=inputs["attention_mask"], encoder_outputs=encoded.to_tuple(),
                  **asked)  # fmt: skip
    for name, tensors in wanted.items():
        for found in (output[name], given[name]):
            found = [found] if isinstance(found, torch.Tensor) else found
            assert len(found) == len(tensors) > 0, name
            assert all(map(torch.equal, found, tensors)), name


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_a_config_may_ask_for_tuples(kind, random_model, batch):
    model = random_model()
    if kind == "recurrent":
        model = RecurrentForConditionalGeneration(RecurrentConfig(vocab_size=23, d_model=8, num_layers=1)).eval()
    inputs = batch(model.config)
    wanted, generated = model(**inputs).to_tuple(), model.generate(inputs["input_ids"], num_beams=2)
    model.config.return_dict = False
    for given in (model(**inputs), model(**inputs, return_dict=True).to_tuple()):
        assert all(map(torch.equal, given, wanted))
    assert torch.equal(model.generate(inputs["input_ids"], num_beams=2), generated)


def test_a_loss_takes_no_cache_and_the_number_of_items_divides_it(random_model, batch):
    model = random_model()
    inputs = batch(model.config)
    output = model(**inputs)
    assert output.past_key_values is None
    count = (inputs["labels"] != -100).sum()
    assert torch.allclose(model(**inputs, num_items_in_batch=2 * count).loss, output.loss / 2)


def test_embeddings_that_are_set_are_those_of_both_sides(random_model):
    model = random_model()
    other = torch.nn.Embedding(model.config.vocab_size, model.config.d_model)
    model.set_input_embeddings(other)
    assert (
        model.model.encoder.embed_tokens is model.model.decoder.embed_tokens is model.get_input_embeddings() is other
    )
