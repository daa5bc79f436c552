"""A cache by both of its names, on any release of transformers."""

import logging
import warnings

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from vaswani import (
    ConvolutionalConfig,
    ConvolutionalForConditionalGeneration,
    RecurrentConfig,
    RecurrentForConditionalGeneration,
)
from vaswani.models.cache_vaswani import CACHE, takes_cache


pytestmark = pytest.mark.smoke
SIZES = {"vocab_size": 23, "d_model": 16, "dropout": 0.0}
CONVOLUTIONS = {
    f"{stack}_{name}": value
    for stack in ("encoder", "decoder")
    for name, value in {"channels": [16, 16], "kernel_sizes": [3, 3]}.items()
}


@pytest.fixture(params=["Transformer", "recurrent", "convolutional"])
def model(request, random_model):
    if request.param == "recurrent":
        return RecurrentForConditionalGeneration(RecurrentConfig(**SIZES, num_layers=1)).eval()
    if request.param == "convolutional":
        return ConvolutionalForConditionalGeneration(ConvolutionalConfig(**SIZES, **CONVOLUTIONS)).eval()
    return random_model()


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@torch.no_grad()
def test_decoding_goes_on_from_a_cache_by_either_name(name, model, batch):
    inputs = batch(model.config, source_length=5)
    source = {"input_ids": inputs["input_ids"]}
    target = torch.randint(1, 22, (4, 3))
    first = model(**source, decoder_input_ids=target[:, :2], use_cache=True)
    assert first[CACHE] is not None
    second = model(**source, decoder_input_ids=target[:, 2:], use_cache=True, **{name: first[CACHE]})
    whole = model(**source, decoder_input_ids=target).logits
    torch.testing.assert_close(torch.cat([first.logits, second.logits], dim=1), whole)
    with pytest.raises(ValueError, match="cache and past_key_values are two names of one argument"):
        model.model.decoder(cache=first[CACHE], past_key_values=first[CACHE])


def test_both_names_at_once_are_refused():
    forward = takes_cache(lambda self, past_key_values=None: past_key_values)
    assert forward(None, cache=1) == forward(None, past_key_values=1) == forward(None, 1) == 1
    assert forward(None, cache=1, past_key_values=None) == 1
    with pytest.raises(ValueError, match="cache and past_key_values are two names of one argument: give one of them"):
        forward(None, cache=1, past_key_values=2)


@torch.no_grad()
def test_transformers_searches_find_nothing_out_of_date(model, batch, monkeypatch):
    said = []
    logging.Logger.warning_once.cache_clear()  # what was said before is said again
    monkeypatch.setattr(logging.Logger, "warning", lambda logger, message, *given, **kwargs: said.append(message))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        source = batch(model.config)["input_ids"]
        model.generate(source, num_beams=2, max_new_tokens=4, output_attentions=True, return_dict_in_generate=True)
        model.generate(source, num_beams=1, max_new_tokens=4, do_sample=True)
        model(input_ids=source, decoder_input_ids=source, use_cache=True)
    assert not [message for message in said if "past_key_values" in str(message)]


def test_a_layer_that_runs_twice_leaves_a_cache_alone(random_model, batch):
    model = random_model().train()
    model.gradient_checkpointing_enable()
    inputs = batch(model.config)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    source = {"input_ids": inputs["input_ids"], "decoder_input_ids": inputs["input_ids"]}
    model(**source, past_key_values=cache).logits.sum().backward()
    assert cache.get_seq_length() == 0
