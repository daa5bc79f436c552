"""ConvS2S: its config, what must not change its results, its initialization, its weights on disk."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from safetensors.torch import load_file
from small_convolutional import small_config, small_model
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from training.settings import ROOT
from vaswani import ConvolutionalConfig, ConvolutionalForConditionalGeneration, ConvolutionalModel
from vaswani.models import modeling_convolutional
from vaswani.models.modeling_convolutional import ConvolutionalLinear
from vaswani.models.predecessor_vaswani import StateCache


# The same mathematics in another order of additions, on values of about 1 in fp32.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def sources_of(inputs) -> dict[str, torch.Tensor]:
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


def gradients(model) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


def test_it_constructs_with_no_arguments_as_the_original_for_english_german():
    config = ConvolutionalConfig()
    assert config.encoder_channels == config.decoder_channels == [512] * 9 + [1024] * 4 + [2048] * 2
    assert config.encoder_kernel_sizes == config.decoder_kernel_sizes == [3] * 13 + [1] * 2
    assert (config.hidden_size, config.max_position_embeddings, config.tie_word_embeddings) == (768, 1024, False)
    config.encoder_channels.append(1)
    assert len(ConvolutionalConfig().encoder_channels) == 15


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder_channels": []}, r"^encoder_channels=\[\] must have one layer or more, of at least 1 channel each$"),
        ({"decoder_channels": [8, 0, 8]}, r"^decoder_channels=\[8, 0, 8\] must have one layer or more"),
        (
            {"decoder_kernel_sizes": [3, 3]},
            r"^decoder_kernel_sizes=\[3, 3\] must have an entry for each of the 3 layers in decoder_channels$",
        ),
        ({"encoder_kernel_sizes": [3, 4, 3]}, r"^encoder_kernel_sizes=\[3, 4, 3\] must be odd numbers of at least 1$"),
        ({"decoder_kernel_sizes": [3, -1, 3]}, r"^decoder_kernel_sizes=\[3, -1, 3\] must be odd numbers"),
        ({"max_position_embeddings": 0}, "^max_position_embeddings=0 must be at least 1$"),
        ({"dropout": 1.0}, r"^dropout=1.0 must be in \[0, 1\)$"),
        ({"d_model": 0}, "^d_model=0 must be at least 1$"),
    ],
)
def test_bad_fields_are_refused_by_name_value_and_rule(fields, message):
    with pytest.raises(ValueError, match=message):
        small_config(**fields)


@pytest.mark.parametrize("fields", [{"encoder_channels": 512}, {"encoder_kernel_sizes": [3.0, 3.0, 3.0]}])
def test_bad_types_are_refused(fields):
    with pytest.raises((StrictDataclassFieldValidationError, TypeError), match=next(iter(fields))):
        small_config(**fields)


def test_the_config_stays_the_same_on_disk(tmp_path):
    config = small_config(source_lang="en", target_lang="de")
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(loaded, ConvolutionalConfig)
    assert loaded.to_diff_dict() == config.to_diff_dict()


def test_the_original_for_english_german_ships():
    folder = ROOT / "hub_configs" / "convs2s-en-de"
    found, default = AutoConfig.from_pretrained(folder), ConvolutionalConfig()
    names = [f"{stack}_{part}" for stack in ("encoder", "decoder") for part in ("channels", "kernel_sizes")]
    for name in (*names, "d_model", "max_position_embeddings", "tie_word_embeddings"):
        assert getattr(found, name) == getattr(default, name), name
    assert (found.vocab_size, found.dropout) == (40_000, 0.2)
    assert GenerationConfig.from_pretrained(folder).suppress_tokens == [found.pad_token_id] == [39_999]


def test_padding_and_the_other_sentences_of_a_batch_change_nothing(batch):
    model = small_model()
    inputs = batch(model.config)
    logits = model(**inputs).logits
    order = torch.tensor([2, 0, 3, 1])
    assert_close(model(**{name: tensor[order] for name, tensor in inputs.items()}).logits, logits[order], **CLOSE)
    for row, (ids, mask, labels) in enumerate(zip(*inputs.values(), strict=True)):
        real = labels != -100
        single = model(input_ids=ids[mask == 1][None], labels=labels[real][None])
        assert_close(logits[row, real], single.logits[0], **CLOSE)
    other = inputs["input_ids"].where(inputs["attention_mask"] == 1, 5)
    assert_close(model(**inputs | {"input_ids": other}).logits, logits, rtol=0, atol=0)


def test_a_padded_source_longer_than_the_table_of_positions_fits():
    model = small_model(max_position_embeddings=6)
    ids, labels = torch.randint(1, 22, (1, 6)), torch.randint(1, 22, (1, 6))
    padded = torch.cat([torch.full((1, 3), 22), ids], dim=1)
    logits = model(input_ids=padded, attention_mask=(padded != 22).long(), labels=labels).logits
    assert_close(logits, model(input_ids=ids, labels=labels).logits, **CLOSE)


def test_later_targets_do_not_change_earlier_logits(batch):
    model = small_model()
    sources = sources_of(batch(model.config))
    ids = torch.randint(1, 22, (4, 6))
    changed = torch.cat([ids[:, :3], (ids[:, 3:] + 1) % 22], dim=1)
    logits, changed_logits = (model(**sources, decoder_input_ids=each).logits for each in (ids, changed))
    assert_close(logits[:, :3], changed_logits[:, :3], rtol=0, atol=1e-6)
    assert (logits[:, 3:] - changed_logits[:, 3:]).abs().amax(dim=-1).min() > 1e-2


@pytest.mark.parametrize("lengths", [[1] * 9, [4, 1, 1, 2, 1], [2, 7]], ids=str)
def test_steps_with_a_cache_equal_one_pass_without(lengths, batch):
    model = small_model()
    inputs = batch(model.config, target_length=9)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(inputs["labels"])
    whole = model(**inputs, use_cache=False).logits
    sources = {
        "attention_mask": inputs["attention_mask"],
        "encoder_outputs": model.model.encoder(**sources_of(inputs)),
    }
    cache, steps = None, []
    for step in decoder_input_ids.split(lengths, dim=1):
        outputs = model(**sources, decoder_input_ids=step, past_key_values=cache, use_cache=True)
        cache = outputs.past_key_values
        steps.append(outputs.logits)
    assert isinstance(cache, StateCache)
    assert cache.get_seq_length() == 9
    assert_close(torch.cat(steps, dim=1), whole, **CLOSE)
    assert model(**inputs, use_cache=False).past_key_values is None


def test_of_a_table_of_positions_no_row_is_missing():
    model = small_model(max_position_embeddings=6)
    message = r"^a sequence of 7 tokens is longer than max_position_embeddings=6, the rows of the learned"
    with pytest.raises(ValueError, match=message):
        model(input_ids=torch.ones(1, 7, dtype=torch.long), labels=torch.ones(1, 2, dtype=torch.long))
    source = {"input_ids": torch.ones(1, 3, dtype=torch.long)}
    cache = model(**source, decoder_input_ids=torch.ones(1, 6, dtype=torch.long), use_cache=True).past_key_values
    with pytest.raises(ValueError, match=message):
        model(**source, decoder_input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=cache)
    assert model.generate(**source, min_new_tokens=3).shape[1] <= 6  # where nothing else limits it


def test_a_decoder_mask_may_hide_the_end_only(batch):
    model = small_model()
    inputs = batch(model.config)
    mask = torch.ones_like(inputs["labels"])
    mask[:, 4:] = 0
    logits = model(**inputs).logits
    assert_close(model(**inputs, decoder_attention_mask=mask).logits, logits, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"^decoder_attention_mask has padding before real tokens"):
        model(**inputs, decoder_attention_mask=1 - mask)


def test_what_is_no_state_or_no_output_of_its_encoder_is_refused(batch):
    model = small_model()
    inputs = batch(model.config)
    states = model.model.encoder(**sources_of(inputs)).last_hidden_state
    for foreign in (BaseModelOutput(last_hidden_state=states), (states,)):
        with pytest.raises(ValueError, match=r"^encoder_outputs, a BaseModelOutput, has no value_states: it must be"):
            model(encoder_outputs=foreign, labels=inputs["labels"])
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache"):
        model(**sources_of(inputs), decoder_input_ids=inputs["labels"][:1], past_key_values=DynamicCache())


# Random models would repeat one token for ever.
SEARCHES = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "several": {"num_beams": 4, "num_return_sequences": 3},
    "stock greedy": {"return_dict_in_generate": True, "output_scores": True},
    "stock beam": {"num_beams": 4, "length_penalty_alpha": None, "num_return_sequences": 2},
    "sampling": {"do_sample": True, "num_return_sequences": 2, "top_k": 0},
    "beam sampling": {"do_sample": True, "num_beams": 3, "length_penalty_alpha": None},
}


@pytest.mark.parametrize("settings", SEARCHES.values(), ids=SEARCHES)
def test_translations_do_not_depend_on_the_cache(settings, batch):
    model = small_model()
    sources = sources_of(batch(model.config))
    found = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        common = {"min_new_tokens": 4, "max_new_tokens": 12, "no_repeat_ngram_size": 1, "use_cache": use_cache}
        output = model.generate(**sources, **settings, **common)
        found.append(output if isinstance(output, torch.Tensor) else output.sequences)
    assert_close(*found)
    assert len(found[0]) == 4 * settings.get("num_return_sequences", 1)
    assert len(set(map(tuple, found[0].tolist()))) > 2


def test_a_beam_is_found_again_when_all_its_prefixes_are_computed_anew(batch):
    model = small_model()
    source = {name: tensor[2:3] for name, tensor in sources_of(batch(model.config)).items()}
    output = model.generate(**source, num_beams=4, max_new_tokens=8, return_dict_in_generate=True)
    sequence = output.sequences[:, : output.sequences[0, 1:].eq(0).long().argmax() + 2]
    length = sequence.shape[1] - 1
    log_probs = model(**source, decoder_input_ids=sequence[:, :-1]).logits[0].log_softmax(-1)
    total = log_probs[torch.arange(length), sequence[0, 1:]].sum().item()
    assert output.sequences_scores.item() == pytest.approx(total / ((5 + length) / 6) ** 0.6, abs=1e-4)


def test_generation_goes_on_from_a_prefix(batch):
    model = small_model()
    sources = sources_of(batch(model.config))
    settings = {"min_new_tokens": 8, "max_new_tokens": 8}
    whole = model.generate(**sources, **settings)
    rest = model.generate(**sources, decoder_input_ids=whole[:, :4], min_new_tokens=5, max_new_tokens=5)
    assert_close(rest, whole)


def test_every_decoder_layer_attends_to_real_tokens_only(batch):
    model = small_model()
    model.set_attn_implementation("eager")
    inputs = batch(model.config)
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    assert [weights.shape for weights in output.cross_attentions] == [(4, 1, 6, 7)] * 3
    mask = inputs["attention_mask"]
    for weights in output.cross_attentions:
        assert_close(weights.sum(-1), torch.ones(4, 1, 6))
        assert (weights.transpose(1, 3)[mask == 0] == 0).all()
        assert (weights.transpose(1, 3)[mask == 1] > 0).all()
    assert output.encoder_attentions is output.decoder_attentions is None
    assert [state.shape[-1] for state in output.encoder_hidden_states] == [12, 12, 12, 16]
    assert [state.shape[-1] for state in output.decoder_hidden_states] == [8, 8, 14, 16]


def test_dropout_stands_where_section_4_2_puts_it(batch, monkeypatch):
    model = small_model(dropout=0.25).train()
    inputs = batch(model.config)
    widths = []

    def noted(states, p, training):
        assert (p, training) == (0.25, True)
        widths.append((states.shape[1], states.shape[2]))
        return states

    monkeypatch.setattr(modeling_convolutional, "dropout", noted)
    model(**inputs)
    encoder = [(7, 16), (7, 12), (7, 12), (7, 12)]  # embeddings, then the input of each convolution
    decoder = [(6, 16), (6, 8), (6, 8), (6, 14), (6, 16)]  # and the input of the softmax
    assert widths == encoder + decoder


def test_nothing_is_dropped_at_inference(batch):
    model, plain = small_model(dropout=0.9), small_model()
    plain.load_state_dict(model.state_dict())
    inputs = batch(model.config)
    assert_close(model(**inputs).logits, plain(**inputs).logits, rtol=0, atol=0)
    assert not torch.allclose(model.train()(**inputs).logits, plain(**inputs).logits, atol=1e-2)


def test_weights_are_initialized_as_the_table_says():
    widths = {"d_model": 96, "encoder_channels": [80, 120, 120], "decoder_channels": [100, 100, 70]}
    model = ConvolutionalForConditionalGeneration(small_config(vocab_size=500, dropout=0.36, **widths))
    for name, module in model.named_modules():
        if isinstance(module, ConvolutionalLinear):
            inputs = module.direction.shape[1]
            variance = {"conv": 4 * 0.64, "model.encoder.in_proj": 0.64, "model.decoder.in_proj": 0.64}
            key = "conv" if name.endswith("conv") else name
            assert module.direction.std().item() == pytest.approx(
                math.sqrt(variance.get(key, 1.0) / inputs), rel=0.04
            ), name
            assert_close(module.gain, module.direction.norm(dim=1))
            assert not module.bias.any()
    assert model.lm_head.weight.std().item() == pytest.approx(math.sqrt(0.64 / 96), rel=0.03)
    assert not model.lm_head.bias.any()
    for stack in (model.model.encoder, model.model.decoder):
        assert stack.embed_tokens.weight.std().item() == pytest.approx(0.1, rel=0.03)
        assert stack.embed_positions.weight.std().item() == pytest.approx(0.1, rel=0.06)
        assert not stack.embed_tokens.weight[499].any()


def test_at_the_start_activations_keep_their_variance():
    sizes = {"encoder_channels": [128] * 8, "encoder_kernel_sizes": [3] * 8, "d_model": 128, "vocab_size": 500}
    model = ConvolutionalModel(small_config(**sizes)).eval()
    embeds = 0.1 * torch.randn(8, 30, 128)  # plus positions: the variance of the sum is 0.02
    first, *others = model.encoder(inputs_embeds=embeds, output_hidden_states=True).hidden_states
    assert first.var().item() == pytest.approx(0.02, rel=0.2)
    assert all(0.75 < state.var() / first.var() < 1.25 for state in others)


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_has_each_matrix_once_and_gives_identical_logits(tied, batch, tmp_path):
    model = small_model(tie_word_embeddings=tied)
    inputs = batch(model.config)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors").keys()
    matrices = {"lm_head.weight", "model.decoder.embed_tokens.weight"}
    assert saved == {name for name, _ in model.named_parameters()}
    assert (not matrices & saved) if tied else (matrices <= saved)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_close(loaded(**inputs).logits, model(**inputs).logits, rtol=0, atol=0)
    assert (loaded.lm_head.weight is loaded.model.encoder.embed_tokens.weight) == tied
    assert (loaded.model.decoder.embed_tokens.weight is loaded.model.encoder.embed_tokens.weight) == tied
    half = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert_close(half(**inputs).logits, model.bfloat16()(**inputs).logits, rtol=0, atol=0)


def test_gains_that_a_checkpoint_lacks_are_the_norms_of_what_it_has(tmp_path):
    model = small_model()
    weights = {name: weight for name, weight in model.state_dict().items() if not name.endswith("gain")}
    model.save_pretrained(tmp_path, state_dict=weights)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"]
    for module in loaded.modules():
        if isinstance(module, ConvolutionalLinear):
            assert_close(module.gain, module.direction.norm(dim=1))


@pytest.mark.parametrize("size", [30, 20])
@pytest.mark.parametrize("tied", [True, False])
def test_resized_embeddings_keep_what_they_knew(size, tied, batch):
    model = small_model(tie_word_embeddings=tied, pad_token_id=1)
    inputs = batch(model.config)
    for name in ("input_ids", "labels"):
        inputs[name] = inputs[name].clamp(max=19)
    logits = model(**inputs).logits.detach()
    model.resize_token_embeddings(size)
    output = model(**inputs)
    output.loss.backward()
    assert output.logits.shape[-1] == model.config.vocab_size == len(model.lm_head.bias) == size
    kept = min(size, 23)
    assert_close(output.logits[..., :kept], logits[..., :kept], **CLOSE)
    embeddings = [model.lm_head, model.model.encoder.embed_tokens, model.model.decoder.embed_tokens]
    assert [module.weight.grad.shape for module in embeddings] == [(size, 16)] * 3
    assert len({module.weight.data_ptr() for module in embeddings}) == (1 if tied else 3)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_leaves_gradients_alone(use_reentrant, batch):
    model = small_model(dropout=0.1).train()
    inputs = batch(model.config)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        model(**inputs).loss.backward()
        found.append(gradients(model))
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    assert found[0].keys() == dict(model.named_parameters()).keys()
    assert_close(*found, **CLOSE)
    assert model(**sources_of(inputs), decoder_input_ids=inputs["input_ids"], use_cache=True).past_key_values is None


def test_losses_of_micro_batches_add_up_to_that_of_the_batch(batch):
    model = small_model()
    inputs = batch(model.config)
    targets = (inputs["labels"] != -100).sum()
    parts = [
        model(**{name: tensor[rows] for name, tensor in inputs.items()}, num_items_in_batch=targets).loss
        for rows in (slice(0, 1), slice(1, 4))
    ]
    assert_close(sum(parts), model(**inputs).loss, **CLOSE)


def test_compiling_gives_equal_logits_and_gradients(batch):
    layers = {"channels": [12], "kernel_sizes": [3]}
    layers = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in layers.items()}
    model = small_model(**layers).train()
    inputs = batch(model.config)
    expected = model(**inputs)
    expected.loss.backward()
    expected_gradients = gradients(model)
    # Traces forward and backward as inductor would, whose C++ takes ten more seconds to build.
    output = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs)
    output.loss.backward()
    assert_close(output.logits, expected.logits, **CLOSE)
    assert_close(gradients(model), expected_gradients, **CLOSE)
