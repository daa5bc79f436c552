"""What must not change a result: cache, back end, batching, padding, saving, compiling, checkpointing, splitting."""

import warnings

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.testing import assert_close
from transformers import (
    DataCollatorForSeq2Seq,
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedTokenizerFast,
    StaticCache,
)

from vaswani import VaswaniForConditionalGeneration
from vaswani.models.modeling_vaswani import sinusoids
from vaswani.models.translator_vaswani import shift_tokens_right


pytestmark = pytest.mark.smoke
# The same mathematics in another order of additions, on values of about 1 in fp32.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
# Whatever depends on one width or one depth where another is meant fails with these.
UNEVEN = {"decoder_layers": 3, "encoder_attention_heads": 4, "head_dim": 6, "v_head_dim": 4}


def gradients(model) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_steps_with_a_cache_equal_one_pass_without(kind, random_model, batch):
    model = random_model(**UNEVEN)
    inputs = batch(model.config)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(inputs["labels"])
    whole = model(**inputs, use_cache=False).logits
    source_length, target_length = inputs["input_ids"].shape[1], decoder_input_ids.shape[1]
    lengths = ({"max_cache_len": n} if kind is StaticCache else {} for n in (target_length + 3, source_length))
    cache = EncoderDecoderCache(*(kind(config=model.config, **length) for length in lengths))
    sources = {"attention_mask": inputs["attention_mask"]}
    sources["encoder_outputs"] = model.model.encoder(inputs["input_ids"], **sources)
    steps = [
        model(**sources, decoder_input_ids=step, past_key_values=cache, use_cache=True).logits
        for step in decoder_input_ids.split(1, dim=1)
    ]
    assert_close(torch.cat(steps, dim=1), whole, **CLOSE)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("settings", [{"use_cache": False}, {"cache_implementation": "static"}], ids=str)
def test_translations_do_not_depend_on_the_cache(settings, num_beams, random_model, batch):
    model = random_model(**UNEVEN)
    sources = {name: tensor for name, tensor in batch(model.config).items() if name != "labels"}
    # Random models would repeat one token for ever.
    common = {"max_new_tokens": 12, "no_repeat_ngram_size": 1, "num_beams": num_beams}
    if "cache_implementation" in settings:
        common["length_penalty_alpha"] = None  # the paper's search has its own cache; both are to be transformers'
    expected = model.generate(**sources, **common)
    assert_close(model.generate(**sources, **common, **settings), expected)
    model.register_forward_hook(lambda *given: None)  # now the model is asked itself
    assert_close(model.generate(**sources, **common, **settings), expected)


@pytest.mark.parametrize(
    "search", [{}, {"num_beams": 3}, {"do_sample": True}, {"num_beams": 3, "do_sample": True}], ids=str
)
def test_padding_is_never_generated_even_where_its_logit_is_highest(search, random_model, batch):
    model = random_model()
    pad = model.config.pad_token_id
    inputs = batch(model.config)
    with torch.no_grad():
        model.model.decoder.layers[-1].final_layer_norm.bias.fill_(1.0)
        model.lm_head.weight[pad] = 10.0
    assert (model(**inputs).logits.argmax(-1) == pad).all()
    del inputs["labels"]
    # Without an end, as what follows an end is padding.
    translations = model.generate(**inputs, **search, min_new_tokens=9, max_new_tokens=9)
    assert not (translations[:, 1:] == pad).any()


@pytest.mark.parametrize("implementation", ["eager", "flex_attention"])
def test_attention_implementations_agree_with_sdpa(implementation, random_model, batch):
    model = random_model(**UNEVEN)
    inputs = batch(model.config)
    assert model.config._attn_implementation == "sdpa"
    expected = model(**inputs)
    expected.loss.backward()
    expected_gradients = gradients(model)
    model.set_attn_implementation(implementation)
    # On CPUs flex attention has no backward, and compiling its kernel would take 20 s.
    on_flex = implementation == "flex_attention"
    stance = "force_eager" if on_flex else "default"
    with torch.set_grad_enabled(not on_flex), torch.compiler.set_stance(stance), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        output = model(**inputs)
    assert_close(output.logits, expected.logits, **CLOSE)
    if not on_flex:
        output.loss.backward()
        assert_close(gradients(model), expected_gradients, **CLOSE)


def test_later_targets_do_not_change_earlier_logits(random_model, batch):
    model = random_model()
    inputs = batch(model.config)
    ids = torch.randint(1, 22, (4, 6))
    changed = torch.cat([ids[:, :3], (ids[:, 3:] + 1) % 22], dim=1)
    sources = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    logits, changed_logits = (model(**sources, decoder_input_ids=each).logits for each in (ids, changed))
    assert_close(logits[:, :3], changed_logits[:, :3], rtol=0, atol=1e-6)
    assert (logits[:, 3:] - changed_logits[:, 3:]).abs().amax(dim=-1).min() > 1e-2


def test_sinusoids_are_exact_at_position_100000():
    table = sinusoids(torch.tensor([0, 1, 100_000]), 32).float()
    angles = np.array([[0.0], [1.0], [100_000.0]]) / 10000 ** (np.arange(0, 32, 2) / 32)
    assert_close(table[:, 0::2], torch.from_numpy(np.sin(angles)).float(), rtol=0, atol=1e-6)
    assert_close(table[:, 1::2], torch.from_numpy(np.cos(angles)).float(), rtol=0, atol=1e-6)


def test_the_decoder_starts_from_a_zero_vector_whatever_the_row_of_padding(random_model, batch):
    model = random_model()
    inputs = batch(model.config)
    logits = model(**inputs).logits
    with torch.no_grad():
        model.model.shared.weight[model.config.pad_token_id] = 1.0
    changed = model(**inputs).logits
    assert_close(changed[..., :-1], logits[..., :-1], rtol=0, atol=0)
    assert (changed[..., -1] != logits[..., -1]).all()  # the softmax does use the row


def test_a_padded_batch_equals_single_sentences(random_model, batch):
    model = random_model()
    inputs = batch(model.config)
    inputs["attention_mask"] = inputs["attention_mask"].sort(descending=True).values  # all padding to the right
    logits = model(**inputs).logits
    for row, (ids, mask, labels) in enumerate(zip(*inputs.values(), strict=True)):
        real = labels != -100
        single = model(input_ids=ids[mask == 1][None], labels=labels[real][None])
        assert_close(logits[row, real], single.logits[0], **CLOSE)


def test_padding_on_the_left_only_moves_positions(random_model, batch):
    # Positions count from the first column as in Marian, padded or not; a moved table of positions undoes that.
    learned = {"position_embedding_type": "learned", "max_position_embeddings": 9}
    model = random_model(**learned)
    inputs = {name: tensor[:1] for name, tensor in batch(model.config).items()}  # three to the left
    padded = model(**inputs).logits
    with torch.no_grad():
        table = model.model.encoder.embed_positions.weight
        table.copy_(table.roll(-3, dims=0))
    assert_close(model(inputs["input_ids"][:, 3:], labels=inputs["labels"]).logits, padded, **CLOSE)


def test_masked_tokens_have_no_influence_on_either_side(random_model, batch):
    model = random_model()
    inputs = batch(model.config)
    inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(inputs["labels"])
    inputs["decoder_attention_mask"] = torch.ones_like(inputs["labels"])
    inputs["decoder_attention_mask"][:2, :2] = 0
    changed = dict(inputs)
    for ids, mask in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
        changed[ids] = inputs[ids].where(inputs[mask] == 1, 5)
    real = inputs["decoder_attention_mask"] == 1
    assert_close(model(**changed).logits[real], model(**inputs).logits[real], rtol=0, atol=1e-6)


def test_the_collator_of_transformers_fits(random_model):
    words = Tokenizer(WordLevel({"</s>": 0, "<unk>": 1, **{w: n for n, w in enumerate("abcdefg", 2)}, "<pad>": 22}))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    model = random_model()
    pairs = [tokenizer(s, text_target=t) for s, t in (("a b c </s>", "d e </s>"), ("f </s>", "g a b c </s>"))]
    collated = DataCollatorForSeq2Seq(tokenizer, model=model)(pairs)
    expected = shift_tokens_right(collated["labels"], model.config.pad_token_id, model.config.pad_token_id)
    assert_close(collated["decoder_input_ids"], expected)
    assert collated["labels"].tolist()[0][3:] == [-100, -100]
    sums = [model(**DataCollatorForSeq2Seq(tokenizer)([p])).loss * len(p["labels"]) for p in pairs]
    assert_close(model(**collated).loss, sum(sums) / 8, **CLOSE)


def test_losses_of_micro_batches_add_up_to_that_of_the_batch(random_model, batch):
    model = random_model()
    inputs = batch(model.config)
    whole = model(**inputs)
    whole.loss.backward()
    whole_gradients = gradients(model)
    targets = (inputs["labels"] != -100).sum()
    parts = [
        model(**{name: tensor[rows] for name, tensor in inputs.items()}, num_items_in_batch=targets).loss
        for rows in (slice(0, 1), slice(1, 4))  # of 6 and of 12 targets: a mean of means would be wrong
    ]
    sum(parts).backward()
    assert_close(sum(parts), whole.loss, **CLOSE)
    assert_close(gradients(model), whole_gradients, **CLOSE)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_leaves_gradients_alone(use_reentrant, random_model, batch):
    model = random_model(dropout=0.1).train()
    inputs = batch(model.config)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        model(**inputs).loss.backward()
        found.append(gradients(model))
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    assert_close(*found, **CLOSE)


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_gives_identical_logits(tied, random_model, batch, tmp_path):
    model = random_model(tie_word_embeddings=tied, **UNEVEN)
    inputs = batch(model.config)
    model.save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    assert_close(loaded(**inputs).logits, model(**inputs).logits, rtol=0, atol=0)
    assert (loaded.lm_head.weight is loaded.model.encoder.embed_tokens.weight) == tied
    half = VaswaniForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert_close(half(**inputs).logits, model.bfloat16()(**inputs).logits, rtol=0, atol=0)


def test_compiling_gives_equal_logits_and_gradients(random_model, batch):
    model = random_model(**UNEVEN)
    inputs = batch(model.config)
    expected = model(**inputs)
    expected.loss.backward()
    expected_gradients = gradients(model)
    # Traces forward and backward as inductor would, whose C++ takes ten more seconds to build.
    output = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs)
    output.loss.backward()
    assert_close(output.logits, expected.logits, **CLOSE)
    assert_close(gradients(model), expected_gradients, **CLOSE)


def test_an_exported_program_takes_other_lengths(random_model, batch):
    model = random_model(**UNEVEN)

    def arguments(*lengths: int) -> dict[str, torch.Tensor]:
        inputs = batch(model.config, *lengths)
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(inputs.pop("labels"))
        inputs["decoder_attention_mask"] = torch.ones_like(inputs["decoder_input_ids"])
        return inputs | {"use_cache": False}

    source, target = {1: torch.export.Dim.DYNAMIC}, {1: torch.export.Dim.DYNAMIC}
    shapes = {"input_ids": source, "attention_mask": source, "use_cache": None}
    shapes |= {"decoder_input_ids": target, "decoder_attention_mask": target}
    program = torch.export.export(model, (), arguments(7, 6), dynamic_shapes=shapes).module()
    others = arguments(12, 9)
    assert_close(program(**others).logits, model(**others).logits, **CLOSE)


@pytest.mark.parametrize("size", [30, 20])
@pytest.mark.parametrize("tied", [True, False])
def test_resized_embeddings_keep_what_they_knew(size, tied, random_model, batch):
    model = random_model(tie_word_embeddings=tied, pad_token_id=1)
    inputs = batch(model.config)
    for name in ("input_ids", "labels"):
        inputs[name] = inputs[name].clamp(max=19)
    logits = model(**inputs).logits.detach()  # a graph kept alive would remember the old shape
    model.resize_token_embeddings(size)
    output = model(**inputs)
    output.loss.backward()
    assert output.logits.shape[-1] == model.config.vocab_size == size
    kept = min(size, 23)
    assert_close(output.logits[..., :kept], logits[..., :kept], **CLOSE)
    assert model.lm_head.weight.grad.shape == model.model.encoder.embed_tokens.weight.grad.shape == (size, 16)
