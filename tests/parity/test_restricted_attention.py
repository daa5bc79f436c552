"""Restricted self-attention (section 4) of whole models: blocks against full masks, every cache against one pass."""

import pytest
import torch
from torch.testing import assert_close
from transformers import AttentionInterface, EncoderDecoderCache, StaticCache

from vaswani.models import modeling_vaswani
from vaswani.models.generation_vaswani import ModelState
from vaswani.models.incremental_vaswani import IncrementalState


pytestmark = pytest.mark.smoke
# float64: the same mathematics in another order of additions.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
# No multiples of a block, and longer than a fast decoder's cache of the smaller neighborhoods ever is.
SOURCE_LENGTH, TARGET_LENGTH = 75, 70
# Whatever depends on one width or one depth where another is meant fails with these.
UNEVEN = {"decoder_layers": 3, "encoder_attention_heads": 4, "head_dim": 6, "v_head_dim": 4}


def logits_and_gradients(model, inputs, implementation: str) -> dict[str, torch.Tensor]:
    model.set_attn_implementation(implementation)
    logits = model(**inputs).logits
    model.zero_grad()
    logits.square().mean().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {"logits": logits.detach(), **gradients}


@pytest.mark.parametrize("restriction", [1, 2, 3, 5, 40, TARGET_LENGTH, 2 * SOURCE_LENGTH])
def test_blocks_equal_full_masks(restriction, random_model, batch):
    model = random_model(attention_restriction=restriction, **UNEVEN).double()
    inputs = batch(model.config, SOURCE_LENGTH, TARGET_LENGTH)
    assert_close(*(logits_and_gradients(model, inputs, name) for name in ("sdpa", "eager")), **CLOSE)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_neighborhood_of_the_whole_sentence_is_no_restriction(implementation, random_model, batch):
    free = random_model().double()
    inputs = batch(free.config, SOURCE_LENGTH, TARGET_LENGTH)
    expected = logits_and_gradients(free, inputs, implementation)
    # As it is centered, its reach is a half: from one end to the other takes two lengths.
    enough = 2 * SOURCE_LENGTH - 1
    for restriction, is_free in ((enough, True), (enough - 2, False), (TARGET_LENGTH, False)):
        model = random_model(attention_restriction=restriction).double()
        model.load_state_dict(free.state_dict())
        found = logits_and_gradients(model, inputs, implementation)
        assert torch.allclose(found["logits"], expected["logits"], **CLOSE) == is_free
    for layer in model.model.encoder.layers:
        layer.self_attn.restriction = enough
    if implementation == "sdpa":  # the decoder needs one length
        assert_close(logits_and_gradients(model, inputs, implementation), expected, **CLOSE)


def sources(model, length: int = 9) -> dict[str, torch.Tensor]:
    mask = torch.ones(3, length, dtype=torch.int64)
    mask[1, -2:] = mask[2, :3] = 0
    ids = torch.randint(1, 22, mask.shape).masked_fill(mask == 0, model.config.pad_token_id)
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def step_through(model, inputs, num_beams: int, is_fast: bool) -> float:
    """Decode random tokens with random parents, two sentences of three in the end; return the largest error.

    What is right is one pass over the whole target of each hypothesis, with full masks.
    """
    model.set_attn_implementation("sdpa")
    states, mask = model.get_encoder()(**inputs).last_hidden_state, inputs["attention_mask"]
    given = {"encoder_outputs": (states.repeat_interleave(num_beams, 0),), "use_cache": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling_vaswani, "is_as_written", lambda *_: is_fast)
        state = model.decoder_state(num_beams, given | {"attention_mask": mask.repeat_interleave(num_beams, 0)})
    assert type(state) is (IncrementalState if is_fast else ModelState)
    tokens, kept = torch.empty(3, num_beams, 0, dtype=torch.int64), torch.arange(3)
    parents, error = None, 0.0
    for length in range(1, TARGET_LENGTH + 1):
        if length == 50:
            kept = torch.tensor([0, 2])
            state.select(kept)
            tokens = tokens[kept]
        new = torch.randint(1, 22, (len(kept), num_beams, 1))
        if length > 1:
            parents = torch.randint(num_beams, (len(kept), num_beams))
            tokens = tokens.gather(1, parents[..., None].expand_as(tokens))
        tokens = torch.cat([tokens, new], dim=2)
        logits = state.step(new, parents)
        if length % 9 and length != 50:
            continue
        model.set_attn_implementation("eager")
        whole = {name: tensor[kept].repeat_interleave(num_beams, 0) for name, tensor in inputs.items()}
        expected = model(**whole, decoder_input_ids=tokens.flatten(0, 1), use_cache=False).logits[:, -1]
        model.set_attn_implementation("sdpa")
        error = max(error, float((logits - expected).abs().max()))
    return error


@pytest.mark.parametrize(
    ("is_fast", "restriction", "num_beams"),
    [(True, 1, 1), (True, 2, 3), (True, 5, 1), (True, 5, 4), (True, 30, 2), (False, 2, 3), (False, 30, 1)],
)
def test_decoding_step_by_step_equals_one_pass(is_fast, restriction, num_beams, random_model):
    model = random_model(attention_restriction=restriction, **UNEVEN).double()
    assert step_through(model, sources(model), num_beams, is_fast) < 1e-11


def test_a_cache_that_shows_one_position_more_or_less_is_found_out(random_model, monkeypatch):
    model = random_model(attention_restriction=5).double()
    for wrong in (4, 6):
        with monkeypatch.context() as patch:
            start = modeling_vaswani.IncrementalState.__init__

            def widened(self, *given, start=start, wrong=wrong):
                start(self, *given)
                self.cache.restriction = wrong

            patch.setattr(modeling_vaswani.IncrementalState, "__init__", widened)
            assert step_through(model, sources(model), num_beams=2, is_fast=True) > 1e-2


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_a_static_cache_equals_one_pass(implementation, random_model):
    model = random_model(attention_restriction=4, **UNEVEN).double()
    inputs, ids = sources(model), torch.randint(1, 22, (3, 40))
    expected = model(**inputs, decoder_input_ids=ids, use_cache=False).logits
    model.set_attn_implementation(implementation)
    cache = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=length) for length in (44, 9)))
    steps = [
        model(**inputs, decoder_input_ids=step, past_key_values=cache, use_cache=True).logits
        for step in ids.split([6, *[1] * 20, 14], dim=1)
    ]
    assert_close(torch.cat(steps, dim=1), expected, **CLOSE)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_translations_depend_on_neither_cache_nor_back_end(num_beams, random_model):
    model = random_model(attention_restriction=4).double()
    inputs, found = sources(model), []
    common = {"max_new_tokens": 25, "no_repeat_ngram_size": 2, "num_beams": num_beams, "length_penalty_alpha": None}
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        for settings in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
            found.append(model.generate(**inputs, **common, **settings))
    assert all(torch.equal(one, found[0]) for one in found)


def test_no_position_hears_of_what_is_beyond_the_reach_of_the_layers(random_model):
    # Table 1: the path between two positions is n / r layers long.
    model = random_model(attention_restriction=4, encoder_layers=3, decoder_layers=3).double()
    inputs = torch.randn(1, SOURCE_LENGTH, 16, dtype=torch.float64, requires_grad=True)
    encoded = model.model.encoder(inputs_embeds=inputs).last_hidden_state
    decoded = model.model.decoder(
        inputs_embeds=inputs, encoder_hidden_states=torch.randn(1, 5, 16, dtype=torch.float64), use_cache=False
    ).last_hidden_state
    for output, before, behind in ((encoded, 3 * 2, 3 * 1), (decoded, 3 * 3, 0)):
        for i in (0, 30, 33, 40, SOURCE_LENGTH - 1):
            (gradient,) = torch.autograd.grad(output[0, i, 0], inputs, retain_graph=True)
            hears = gradient[0].abs().sum(-1).nonzero()[:, 0].tolist()
            assert hears == list(range(max(0, i - before), min(SOURCE_LENGTH, i + behind + 1)))


def test_gradient_checkpointing_changes_nothing(random_model, batch):
    model = random_model(attention_restriction=4).double()
    inputs = batch(model.config, SOURCE_LENGTH, TARGET_LENGTH)
    expected = logits_and_gradients(model, inputs, "sdpa")
    model.train().gradient_checkpointing_enable()
    assert_close(logits_and_gradients(model, inputs, "sdpa"), expected, **CLOSE)


def test_other_back_ends_are_refused_at_the_first_forward_also_when_they_are_set_later(random_model, batch):
    model = random_model(attention_restriction=4)
    inputs = batch(model.config)
    model(**inputs)
    AttentionInterface.register("mine", lambda *given, **named: None)
    for name in ("flex_attention", "mine"):
        model.set_attn_implementation(name)
        for call in (model, model.generate):
            given = {key: tensor for key, tensor in inputs.items() if call is model or key != "labels"}
            with pytest.raises(ValueError, match=f"attention_restriction=4 .* attn_implementation='{name}'"):
                call(**given)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_mask_of_four_dimensions_is_refused_as_it_would_replace_the_band(implementation, random_model, batch):
    model = random_model(attention_restriction=4)
    model.set_attn_implementation(implementation)
    inputs = batch(model.config)
    inputs["attention_mask"] = torch.zeros(4, 1, 7, 7)
    with pytest.raises(ValueError, match=r"attention_restriction=4 .* shape \(4, 1, 7, 7\): that must be"):
        model(**inputs)
