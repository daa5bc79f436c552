import copy
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import CompileConfig, GenerationConfig, LogitsProcessor, LogitsProcessorList, TextStreamer
from transformers.generation import GenerationMixin, SuppressTokensLogitsProcessor
from transformers.modeling_outputs import BaseModelOutput

from vaswani import VaswaniForConditionalGeneration
from vaswani.models import generation_vaswani
from vaswani.models.fusion_vaswani import AS_WRITTEN
from vaswani.models.generation_vaswani import VaswaniGenerationMixin, length_arguments, weights_are_sharded


pytestmark = pytest.mark.smoke
THEIR_DEFAULTS = GenerationConfig._get_default_generation_params()
PAPER = {"num_beams": 4, "length_penalty_alpha": 0.6, "extra_target_tokens": 50}


@pytest.fixture
def model(random_model):
    """Return a model with the paper's settings."""
    model = random_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    model.generation_config.update(**PAPER, allow_custom_entries=True)
    return model


@pytest.fixture
def source():
    return {"input_ids": torch.randint(1, 22, (3, 5)), "attention_mask": torch.ones(3, 5, dtype=torch.int64)}


@pytest.fixture
def searches(monkeypatch):
    """Return the names of our searches that run, as they do."""
    ran = []
    for name in ("beam_search", "greedy_search", "transformers_beam_search"):
        search = getattr(generation_vaswani, name)

        def noted(*args, search=search, name=name, **kwargs):
            ran.append(name)
            return search(*args, **kwargs)

        monkeypatch.setattr(generation_vaswani, name, noted)
    return ran


def test_a_saved_model_keeps_the_papers_settings(model, source, searches, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(**source), model.generate(**source))
    assert searches == ["beam_search"] * 2
    assert {path.name for path in tmp_path.glob("*.py")} >= {"generation_vaswani.py", "incremental_vaswani.py"}


@pytest.mark.parametrize(
    ("settings", "search"),
    [
        ({}, "beam_search"),
        ({"num_beams": 2, "num_return_sequences": 2, "no_repeat_ngram_size": 2}, "beam_search"),
        ({"return_dict_in_generate": True, "output_scores": True}, "beam_search"),
        ({"length_penalty_alpha": 0}, "beam_search"),
        ({"length_penalty_alpha": -10, "max_new_tokens": 3}, "beam_search"),
        ({"max_new_tokens": 3, "use_cache": False}, "beam_search"),
        ({"generation_config": GenerationConfig(num_beams=3)}, "beam_search"),
        ({"num_beams": 30, "max_new_tokens": 4}, "beam_search"),  # of 23 types
        ({"labels": torch.ones(3, 1, dtype=torch.int64)}, "beam_search"),  # as transformers' Seq2SeqTrainer gives
        ({"num_beams": 1}, "greedy_search"),
        ({"num_beams": 1, "repetition_penalty": 1.2, "length_penalty_alpha": 0.6}, "greedy_search"),
        ({"length_penalty_alpha": None}, "transformers_beam_search"),
        ({"length_penalty": 1.0}, "transformers_beam_search"),
        ({"early_stopping": True}, "transformers_beam_search"),
        ({"generation_config": GenerationConfig(num_beams=3, length_penalty=2.0)}, "transformers_beam_search"),
        ({"generation_config": GenerationConfig(length_penalty_alpha=1, length_penalty=1.0)}, "beam_search"),
        (
            {"generation_config": GenerationConfig(length_penalty_alpha=1, length_penalty=1.2)},
            "transformers_beam_search",
        ),
        ({"generation_config": GenerationConfig(length_penalty_alpha=None)}, "transformers_beam_search"),
        ({"generation_config": GenerationConfig(**THEIR_DEFAULTS)}, "greedy_search"),
        ({"generation_config": GenerationConfig(**THEIR_DEFAULTS | {"num_beams": 3})}, "beam_search"),
        ({"compile_config": CompileConfig(backend="eager")}, None),
        ({"compile_config": CompileConfig(backend="eager"), "disable_compile": True}, "beam_search"),
        (
            {
                "generation_config": GenerationConfig(
                    compile_config=CompileConfig(backend="eager"), disable_compile=True
                )
            },
            "beam_search",
        ),
        ({"prefill_chunk_size": 2, "num_beams": 1}, None),
        ({"eos_token_id": torch.tensor(0)}, "beam_search"),
        ({"length_penalty": 1.0, "num_return_sequences": 2, "min_new_tokens": 3}, "transformers_beam_search"),
        ({"length_penalty": 1.0, "return_dict_in_generate": True}, "transformers_beam_search"),
        ({"length_penalty": 1.0, "do_sample": True}, None),
        ({"do_sample": True}, None),
        ({"generation_config": GenerationConfig(do_sample=True)}, None),
        ({"do_sample": True, "num_beams": 1, "num_return_sequences": 3}, None),
        ({"output_attentions": True, "return_dict_in_generate": True}, None),
        ({"num_beams": 1, "return_dict_in_generate": True}, None),
        ({"num_beams": 1, "prompt_lookup_num_tokens": 2}, None),
        ({"num_beams": 1, "cache_implementation": "static"}, None),
    ],
    ids=str,
)
def test_each_search_runs_where_it_is_asked_for(settings, search, model, source, searches):
    if "prompt_lookup_num_tokens" in settings:
        source = {name: tensor[:1] for name, tensor in source.items()}
    output = model.generate(**source, **settings)
    assert searches[:1] == ([search] if search else [])
    assert model.has_own_search(**settings) == (search is not None)
    tokens = output if isinstance(output, torch.Tensor) else output.sequences
    assert not (tokens[:, 1:2] == model.config.pad_token_id).any()


def test_transformers_penalty_keeps_its_meaning(model, random_model, source):
    ours = model.generate(**source, length_penalty=2.0, max_new_tokens=9)
    model.generation_config = random_model().generation_config
    assert torch.equal(ours, model.generate(**source, length_penalty=2.0, num_beams=4, max_new_tokens=9))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"length_penalty_alpha": "0.6"},
            "length_penalty_alpha='0.6' must be a number from -10 to 10: the paper's is",
        ),
        ({"length_penalty_alpha": 10.5}, "length_penalty_alpha=10.5 must be a number from -10 to 10"),
        ({"length_penalty_alpha": -5000}, "length_penalty_alpha=-5000 must be a number from -10 to 10"),
        ({"max_new_tokens": 2.9}, "max_new_tokens=2.9 must be a whole number, 0 or more"),
        ({"max_length": 3.5}, "max_length=3.5 must be a whole number, 0 or more"),
        ({"min_new_tokens": "3"}, "min_new_tokens='3' must be a whole number, 0 or more"),
        ({"min_length": -1}, "min_length=-1 must be a whole number, 0 or more"),
        ({"num_return_sequences": 0}, "num_return_sequences=0 must be a whole number, 1 or more"),
        ({"num_return_sequences": 2.0}, "num_return_sequences=2.0 must be a whole number, 1 or more"),
        ({"suppress_tokens": 5}, "suppress_tokens=5 must be a list of ids"),
        ({"suppress_tokens": [99999]}, "suppress_tokens=99999 must be an id from 0 to "),
        ({"num_beams": 1, "suppress_tokens": [-1]}, "suppress_tokens=-1 must be an id from 0 to "),
        ({"length_penalty_alpha": True}, "length_penalty_alpha=True must be a number"),
        ({"length_penalty_alpha": float("nan")}, "length_penalty_alpha=nan must be a number"),
        ({"length_penalty_alpha": float("inf")}, "length_penalty_alpha=inf must be a number"),
        ({"num_beams": 0}, "num_beams=0 must be a whole number, 1 or more"),
        ({"num_beams": -4}, "num_beams=-4 must be a whole number, 1 or more"),
        ({"num_beams": True}, "num_beams=True must be a whole number, 1 or more"),
        ({"num_beams": 2.5}, "num_beams=2.5 must be a whole number, 1 or more"),
        ({"extra_target_tokens": -1}, "extra_target_tokens=-1 must be a whole number, 0 or more"),
        (
            {"length_penalty_alpha": 0.6, "length_penalty": 1.0},
            "length_penalty_alpha=0.6 and length_penalty=1.0 contradict each other",
        ),
        (
            {"length_penalty_alpha": 0.6, "early_stopping": True},
            "length_penalty_alpha=0.6 and early_stopping=True contradict each other",
        ),
        (
            {"length_penalty_alpha": 0.6, "do_sample": True},
            "length_penalty_alpha=0.6 does not go together with do_sample",
        ),
        ({"length_penalty": float("nan")}, "length_penalty=nan must be a finite number"),
        ({"length_penalty": "1"}, "length_penalty='1' must be a finite number"),
        ({"generation_config": GenerationConfig(length_penalty=float("inf"))}, "length_penalty=inf must be a finite"),
        ({"generation_config": {"num_beams": 4}}, "generation_config={'num_beams': 4} must be a GenerationConfig"),
        ({"num_return_sequences": 5}, "num_return_sequences"),
        ({"num_beams": 1, "num_return_sequences": 2}, "num_return_sequences"),
    ],
    ids=str,
)
def test_bad_settings_are_refused_in_one_sentence(settings, message, model, source):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refusal:
        model.generate(**source, **settings)
    assert message in str(refusal.value)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize(
    ("shape", "name"),
    [((5,), "inputs"), ((5,), "input_ids"), ((0, 5), "inputs"), ((2, 0), "inputs"), ((2, 5), "inputs_embeds")],
)
def test_a_source_that_is_no_batch_is_refused_with_its_shape(shape, name, num_beams, model):
    source = torch.ones(shape, dtype=torch.float32 if name == "inputs_embeds" else torch.int64)
    axes = "(sentences, tokens, d_model)" if name == "inputs_embeds" else "(sentences, tokens)"
    message = f"a source of shape {shape} must have the shape {axes}, none of them 0"
    with pytest.raises(ValueError, match=re.escape(message)):
        model.generate(**{name: source}, num_beams=num_beams, max_new_tokens=3)


def test_beam_search_does_not_stream_and_greedy_search_does(model, source):
    class Tokens(TextStreamer):
        def __init__(self):
            self.seen = []

        def put(self, value):
            self.seen += value.flatten().tolist()

        def end(self):
            pass

    source = {name: tensor[:1] for name, tensor in source.items()}
    streamer = Tokens()
    output = model.generate(**source, num_beams=1, streamer=streamer, max_new_tokens=9)
    assert streamer.seen == output[0].tolist()
    assert torch.equal(output, model.generate(**source, num_beams=1, max_new_tokens=9))
    with pytest.raises(ValueError, match="`streamer` cannot be used with beam search"):
        model.generate(**source, streamer=streamer)


@pytest.mark.parametrize(
    "given",
    [
        {"suppress_tokens": [3]},
        {"generation_config": GenerationConfig(suppress_tokens=[3])},
        {"generation_config": GenerationConfig(num_beams=2), "suppress_tokens": [3]},
    ],
)
@pytest.mark.parametrize(
    "search", [{}, {"num_beams": 1}, {"num_beams": 1, "do_sample": True}, {"length_penalty": 1.0}]
)
def test_padding_stays_ruled_out_whatever_else_is(given, search, model, source):
    with torch.no_grad():
        model.model.decoder.layers[-1].final_layer_norm.bias.fill_(1.0)
        model.lm_head.weight[model.config.pad_token_id] = 10.0
        model.lm_head.weight[3] = 9.0
    translations = model.generate(**source, **given, **search, min_new_tokens=9, max_new_tokens=9)
    assert not torch.isin(translations[:, 1:], torch.tensor([3, model.config.pad_token_id])).any()


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_prefix_without_the_start_gets_it_and_counts_without_it(num_beams, model, source):
    start = model.config.decoder_start_token_id
    how = {"num_beams": num_beams, "extra_target_tokens": 0, "min_new_tokens": 9, "suppress_tokens": [0]}
    found = [
        model.generate(**source, **how, decoder_input_ids=torch.tensor([prefix] * 3)) for prefix in ([5], [start, 5])
    ]
    assert torch.equal(*found)
    assert found[0].shape[1] == 2 + 9


DICT = {"return_dict_in_generate": True}
OURS_AND_THEIRS = [
    {"num_beams": 1},
    {"num_beams": 4},
    {"num_beams": 1, **DICT},
    {"num_beams": 1, "do_sample": True},
    {"num_beams": 3, "length_penalty": 0.0, "output_attentions": True, **DICT},
]


@pytest.mark.parametrize("how", OURS_AND_THEIRS, ids=str)
def test_lengths_are_limited_by_each_source_unless_a_length_is_given(how, model, source):
    source["attention_mask"][1, 2:] = 0

    def lengths(**settings):
        tokens = model.generate(**source, **how, suppress_tokens=[0], **settings)
        tokens = getattr(tokens, "sequences", tokens)
        return (tokens[:, 1:] != model.config.pad_token_id).sum(1).tolist()

    assert lengths() == [55, 52, 55]
    assert lengths(extra_target_tokens=0) == [5, 2, 5]
    assert len(set(lengths(extra_target_tokens=None))) == 1  # transformers' limit, which knows no source
    assert lengths(max_new_tokens=3) == lengths(max_length=4) == [3, 3, 3]
    assert lengths(max_new_tokens=60) == [60, 60, 60]
    assert lengths(min_new_tokens=54) == lengths(min_length=55) == [55, 54, 55]
    assert lengths(extra_target_tokens=0, min_new_tokens=3) == [5, 3, 5]
    assert lengths(extra_target_tokens=0, min_new_tokens=9) == [9, 9, 9]
    assert lengths(generation_config=GenerationConfig(max_new_tokens=3)) == [3, 3, 3]
    assert lengths(generation_config=GenerationConfig(max_length=4)) == [3, 3, 3]
    both = {"generation_config": GenerationConfig(max_new_tokens=9), "max_length": 4}  # transformers prefers the first
    assert lengths(**both) == [9, 9, 9]
    assert lengths(generation_config=GenerationConfig(max_length=20)) == [55, 52, 55]  # transformers' default
    model.generation_config.max_length = 7
    assert lengths() == [6, 6, 6]
    model.generation_config.max_length = 20
    assert lengths() == [55, 52, 55]


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("name", ["max_new_tokens", "max_length", "extra_target_tokens"])
@pytest.mark.parametrize("limit", [10**12, 10**20])
def test_a_limit_beyond_all_outputs_is_none_and_takes_no_memory(limit, name, num_beams, model, source):
    how = {**source, "num_beams": num_beams, "eos_token_id": list(range(12))}
    if num_beams > 1:
        how["length_penalty_alpha"] = 0  # or hypotheses might still become as long
    assert torch.equal(model.generate(**how, **{name: limit}), model.generate(**how))


@pytest.mark.parametrize("how", [{}, {"num_beams": 1}, {"max_time": 100.0}], ids=["paper", "greedy", "transformers"])
def test_extra_tokens_that_are_asked_for_count_before_a_limit_in_a_config(how, model, source):
    def lengths(**settings):
        tokens = model.generate(**source, **how, suppress_tokens=[0], **settings)
        return (tokens[:, 1:] != model.config.pad_token_id).sum(1).tolist()

    assert lengths(extra_target_tokens=4, generation_config=GenerationConfig(max_new_tokens=3)) == [9, 9, 9]
    model.generation_config.update(max_new_tokens=3)
    assert lengths(extra_target_tokens=4) == [9, 9, 9]
    assert lengths(generation_config=GenerationConfig(extra_target_tokens=4)) == [9, 9, 9]
    assert lengths() == [3, 3, 3]


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("start", [[22], [22, 3, 5]], ids=["no prefix", "a prefix"])
def test_a_learned_table_of_positions_limits_the_length_too(start, num_beams, random_model, source):
    source["attention_mask"][1, 2:] = 0
    model = random_model(position_embedding_type="learned", max_position_embeddings=12)

    def lengths(**settings):
        given = {"decoder_input_ids": torch.tensor([start] * 3), "num_beams": num_beams, "suppress_tokens": [0]}
        tokens = model.generate(**source, **given, **settings)
        return (tokens != model.config.pad_token_id).sum(1).add(1).tolist()  # the start is <pad>

    assert lengths() == [12, 12, 12]
    prefix = len(start)
    assert lengths(extra_target_tokens=6) == [min(12, prefix + 11), prefix + 8, min(12, prefix + 11)]
    with pytest.raises(ValueError, match="longer than max_position_embeddings=12"):
        lengths(max_new_tokens=30)


def test_a_prefix_as_long_as_the_table_of_positions_leaves_room_for_one_token(random_model, source):
    model = random_model(position_embedding_type="learned", max_position_embeddings=5)
    prefix = torch.tensor([[22, 1, 2, 3, 4]] * 3)
    assert model.generate(**source, decoder_input_ids=prefix, num_beams=2, suppress_tokens=[0]).shape == (3, 6)


SINUSOIDS = {"position_embedding_type": "sinusoidal", "max_position_embeddings": 30}


@pytest.mark.parametrize(
    ("config", "call", "expected"),
    [
        ({}, {}, {"max_new_tokens": 57}),
        (SINUSOIDS, {}, {"max_new_tokens": 57}),
        ({"max_position_embeddings": 30}, {}, {"max_new_tokens": 29}),
        ({"max_position_embeddings": 58}, {}, {"max_new_tokens": 57}),
        ({}, {"max_new_tokens": None, "max_length": None}, {"max_new_tokens": 57}),
        ({}, {"generation_config": GenerationConfig(num_beams=2)}, {"max_new_tokens": 57}),
        ({}, {"generation_config": GenerationConfig(max_length=9)}, {}),
        ({}, {"generation_config": GenerationConfig(max_new_tokens=9)}, {}),
        ({}, {"max_new_tokens": 3}, {}),
        ({}, {"max_length": 3}, {}),
    ],
    ids=str,
)
def test_translations_by_other_models_are_limited_unless_the_call_says_how(config, call, expected):
    other = SimpleNamespace(config=SimpleNamespace(**config))
    assert length_arguments(other, 7, call) == expected


@pytest.mark.parametrize("limit", [{"max_length": 9}, {"max_new_tokens": 9}], ids=str)
def test_translations_by_other_models_keep_the_limit_of_the_models_own_settings(limit):
    other = SimpleNamespace(config=SimpleNamespace(), generation_config=GenerationConfig(**limit))
    assert length_arguments(other, 7, {}) == {}
    other.generation_config = GenerationConfig(**THEIR_DEFAULTS)  # as transformers' trainer fills it in
    assert length_arguments(other, 7, {}) == {"max_new_tokens": 57}


def test_our_models_limit_translations_themselves(model):
    assert length_arguments(model, 7, {}) == {}


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("paper", [PAPER, {}], ids=["published", "from a config"])
def test_what_transformers_fills_into_a_config_changes_nothing(paper, num_beams, random_model, source, searches):
    model = random_model()
    model.generation_config.update(**paper, allow_custom_entries=True)
    expected = model.generate(**source, num_beams=num_beams, suppress_tokens=[0])
    # As transformers' Seq2SeqTrainer does after each batch
    model.generation_config.update(**THEIR_DEFAULTS, defaults_only=True)
    assert model.generation_config.max_length == 20
    assert torch.equal(model.generate(**source, num_beams=num_beams, suppress_tokens=[0]), expected)
    assert expected.shape[1] == 1 + 5 + 50
    assert searches == ["greedy_search" if num_beams == 1 else "beam_search"] * 2


def test_a_model_made_from_a_config_decodes_as_the_paper_did(random_model, source, searches):
    model = random_model()
    expected = model.generate(**source, num_beams=4, length_penalty_alpha=0.6, extra_target_tokens=50)
    assert torch.equal(model.generate(**source, num_beams=4), expected)
    assert searches == ["beam_search"] * 2


def test_a_penalty_of_transformers_in_the_models_config_asks_for_transformers(model, source, searches):
    model.generation_config.length_penalty = 1.2
    asked = model.generate(**source)
    assert torch.equal(asked, model.generate(**source, length_penalty=1.2))
    assert searches == ["transformers_beam_search", "beam_search"] * 2
    model.generation_config.length_penalty = 1.0
    model.generate(**source)
    assert searches[4:] == ["beam_search"]


@pytest.mark.parametrize("penalty", [{}, {"length_penalty": 1.0}])
def test_nothing_is_returned_that_is_forbidden(penalty, model, source):
    legal = [[5, 6], [5, 7, 8]]
    end = model.config.eos_token_id

    def allowed(_, ids):
        done = ids.tolist()[1:]
        return [*{way[len(done)] for way in legal if way[: len(done)] == done and len(way) > len(done)}] or [end]

    how = {"num_beams": 4, "num_return_sequences": 4, "return_dict_in_generate": True}
    output = model.generate(**source, prefix_allowed_tokens_fn=allowed, **how, **penalty)
    texts = [[id for id in row if id not in (end, model.config.pad_token_id)] for row in output.sequences.tolist()]
    assert all(text in legal for text in texts)
    assert all(text in texts[first : first + 4] for first in range(0, len(texts), 4) for text in legal)
    assert output.sequences_scores.view(-1, 4).isinf().tolist() == [[False, False, True, True]] * (len(texts) // 4)


@pytest.mark.parametrize("setting", [{"length_penalty": np.int64(1)}, {"length_penalty_alpha": np.float32(0.6)}])
def test_numbers_may_be_numpys(setting, model, source):
    plain = {name: float(value) for name, value in setting.items()}
    assert torch.equal(model.generate(**source, **setting), model.generate(**source, **plain))


def test_an_encoder_of_ones_own_encodes(model, source, monkeypatch):
    how = {"num_beams": 4, "return_dict_in_generate": True}
    before = model.generate(**source, **how).sequences_scores

    class Silence(torch.nn.Module):
        def forward(self, input_ids, **others):
            return BaseModelOutput(torch.zeros(*input_ids.shape, model.config.d_model))

    monkeypatch.setattr(type(model), "get_encoder", lambda self, *given: Silence())
    assert not torch.equal(model.generate(**source, **how).sequences_scores, before)


@pytest.mark.parametrize("how", OURS_AND_THEIRS, ids=str)
@pytest.mark.parametrize("start", [[22], [22, 1, 2]], ids=["no prefix", "a prefix"])
def test_a_forced_end_comes_at_each_sentences_own_limit(start, how, model, source):
    source["attention_mask"][1, 2:] = 0
    tokens = model.generate(
        **source,
        **how,
        decoder_input_ids=torch.tensor([start] * 3),
        extra_target_tokens=1,
        sequence_bias={(0,): -99.0},
        forced_eos_token_id=0,
    )
    tokens = getattr(tokens, "sequences", tokens)
    assert tokens[:, len(start) :].eq(0).nonzero().tolist() == [[0, 5], [1, 2], [2, 5]]


@pytest.mark.parametrize("how", OURS_AND_THEIRS, ids=str)
def test_without_a_mask_padding_does_not_count_for_the_limit(how, model, source):
    source["input_ids"][1, 2:] = 22
    del source["attention_mask"]
    found = model.generate(**source, **how, suppress_tokens=[0], extra_target_tokens=0)
    found = getattr(found, "sequences", found)
    assert (found[:, 1:] != 22).sum(1).tolist() == [5, 2, 5]


def test_several_samples_of_a_sentence_have_its_limit(model, source):
    source["attention_mask"][1, 2:] = 0
    how = {"do_sample": True, "num_return_sequences": 2, "suppress_tokens": [0], "extra_target_tokens": 0}
    assert (model.generate(**source, **how)[:, 1:] != 22).sum(1).tolist() == [5, 5, 2, 2, 5, 5]


def test_an_alpha_without_beams_is_not_passed_over_in_silence(model, source, monkeypatch):
    said = []
    monkeypatch.setattr(generation_vaswani.logger, "warning_once", said.append)
    model.generate(**source, num_beams=1)
    assert said == []  # that of the model's settings is for whoever asks for beams
    model.generate(**source, num_beams=1, length_penalty_alpha=0.6)
    assert said == ["length_penalty_alpha=0.6 has no effect with num_beams=1: it is for beam search"]
    model.generate(**source, do_sample=True, max_new_tokens=2)
    assert said[1].startswith("do_sample is left to transformers' beam search, whose length penalty is not the paper")


def test_a_search_of_transformers_that_somebody_replaced_is_called(model, source, searches, monkeypatch):
    ran = []

    def sample(self, input_ids, **given):
        ran.append("replaced")
        return input_ids

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "_sample", sample, raising=False)
        model.generate(**source, num_beams=1)
    model.generate(**source, num_beams=1)
    assert (ran, searches) == (["replaced"], ["greedy_search"])
    ours = model._has_unfinished_sequences
    model._has_unfinished_sequences = lambda *given, **named: ran.append("of this object") or ours(*given, **named)
    model.generate(**source, num_beams=1, max_new_tokens=2)
    assert "of this object" in ran
    assert searches == ["greedy_search"]


def test_a_generation_config_stays_as_it_was_given(model, source):
    config = GenerationConfig(num_beams=2, suppress_tokens=[3])
    before = config.to_dict()
    once = model.generate(**source, generation_config=config)
    assert config.to_dict() == before
    assert torch.equal(model.generate(**source, generation_config=config), once)


@pytest.mark.parametrize("given", [{}, {"synced_gpus": False}], ids=str)
def test_sharded_weights_ask_for_steps_that_all_processes_take(given, model, source, monkeypatch):
    seen = []
    monkeypatch.setattr(generation_vaswani, "weights_are_sharded", lambda model: True)
    monkeypatch.setattr(GenerationMixin, "generate", lambda self, *_, **settings: seen.append(settings))
    model.generate(**source, num_beams=1, **given)
    [settings] = seen
    assert settings["synced_gpus"] == given.get("synced_gpus", True)
    assert ("custom_generate" in settings) == bool(given)


@pytest.mark.parametrize("processes", [1, 2])
def test_weights_are_sharded_where_several_processes_have_parts(processes, model, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: processes)
    assert not weights_are_sharded(model)
    monkeypatch.setattr("torch.distributed.tensor.DTensor", torch.nn.Parameter)
    assert weights_are_sharded(model) == (processes > 1)


def test_a_model_that_compiles_nothing_leaves_it_to_transformers():
    assert VaswaniGenerationMixin().fused(None) is AS_WRITTEN
    assert VaswaniGenerationMixin().fused(CompileConfig()) is None


def test_processors_of_ones_own_are_called(model, source):
    class Only(LogitsProcessor):
        def __call__(self, input_ids, scores):
            assert scores.shape == (len(input_ids), 23)
            return torch.full_like(scores, -100.0).index_fill(1, torch.tensor([input_ids.shape[1]]), 0.0)

    for settings in ({}, {"num_beams": 1}):
        output = model.generate(**source, **settings, logits_processor=LogitsProcessorList([Only()]), max_new_tokens=4)
        assert output[:, 1:].tolist() == [[1, 2, 3, 4]] * 3
        ids, mask = source.values()
        by_place = model.generate(
            ids, None, LogitsProcessorList([Only()]), attention_mask=mask, **settings, max_new_tokens=4
        )
        assert torch.equal(by_place, output)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_ban_of_ones_own_counts_beside_those_of_the_settings(num_beams, model, source):
    """It is of a class of which the settings make processors, too."""
    how = source | {"num_beams": num_beams, "max_new_tokens": 6, "min_new_tokens": 6}
    written = model.generate(**how)[:, 1:].unique()
    processors = LogitsProcessorList([SuppressTokensLogitsProcessor(written)])
    others = model.generate(**how, logits_processor=processors)[:, 1:]
    assert not torch.isin(others, written).any()


def test_of_ids_and_encoded_sources_the_second_count(model, source):
    encoder_outputs = model.get_encoder()(source["input_ids"].flip(0), source["attention_mask"])
    for num_beams in (1, 4):
        expected = model.generate(
            source["input_ids"].flip(0), attention_mask=source["attention_mask"], num_beams=num_beams
        )
        assert torch.equal(model.generate(**source, encoder_outputs=encoder_outputs, num_beams=num_beams), expected)


def test_encoded_sources_and_embedded_ones_give_the_same(model, source):
    expected = model.generate(**source)
    mask = {"attention_mask": source["attention_mask"]}
    assert torch.equal(model.generate(source["input_ids"], **mask), expected)
    embeddings = model.get_input_embeddings()(source["input_ids"])
    assert torch.equal(model.generate(inputs_embeds=embeddings, **mask), expected)
    encoder_outputs = model.get_encoder()(**source)
    assert torch.equal(model.generate(encoder_outputs=encoder_outputs, **mask), expected)


def test_encoded_sources_without_a_mask_have_the_length_of_their_states(model, source):
    encoder_outputs = model.get_encoder()(**source)
    for num_beams in (1, 4):
        tokens = model.generate(encoder_outputs=encoder_outputs, num_beams=num_beams, suppress_tokens=[0])
        assert tokens.shape == (3, 1 + 5 + 50)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize(("given", "end"), [({"min_length": 6}, 6), ({"min_new_tokens": 6}, 9)], ids=str)
def test_a_prefix_counts_for_min_length_and_not_for_min_new_tokens(given, end, num_beams, model, source):
    with torch.no_grad():  # every sentence ends as soon as it may
        model.model.decoder.layers[-1].final_layer_norm.bias.fill_(1.0)
        model.lm_head.weight[0] = 3.0
    prefix = torch.tensor([[22, 1, 2]] * 3)
    tokens = model.generate(**source, decoder_input_ids=prefix, num_beams=num_beams, **given)
    assert [row.index(0) for row in tokens.tolist()] == [end] * 3


@pytest.mark.parametrize("num_beams", [1, 4])
def test_without_a_token_that_ends_them_sentences_go_to_their_limit(num_beams, model, source):
    with torch.no_grad():
        model.model.decoder.layers[-1].final_layer_norm.bias.fill_(1.0)
        model.lm_head.weight[0] = 3.0
    model.generation_config.eos_token_id = None
    tokens = model.generate(**source, num_beams=num_beams, extra_target_tokens=0)
    assert tokens[:, 1:].tolist() == [[0] * 5] * 3


@pytest.mark.parametrize("num_beams", [1, 4])
def test_padding_that_ends_sentences_is_not_ruled_out(num_beams, model, source):
    with torch.no_grad():
        model.model.decoder.layers[-1].final_layer_norm.bias.fill_(1.0)
        model.lm_head.weight[22] = 10.0
    model.generation_config.suppress_tokens = None
    tokens = model.generate(**source, num_beams=num_beams, eos_token_id=22, max_new_tokens=3)
    assert tokens.tolist() == [[22, 22]] * 3


def test_an_order_of_caches_of_ones_own_is_asked_for(model, source, monkeypatch):
    expected, made = model.generate(**source), []

    def reorder(self, cache, rows):
        assert not made or cache is made[-1]  # it goes on from what this returned
        made.append(copy.deepcopy(cache))
        made[-1].reorder_cache(rows)
        return made[-1]

    monkeypatch.setattr(type(model), "_reorder_cache", reorder, raising=False)
    assert torch.equal(model.generate(**source), expected)
    assert made


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_fallback_computes_dropped_sentences_but_hides_their_logits(num_beams, random_model, source):
    model = random_model(position_embedding_type="learned")
    for name, weight in model.named_parameters():  # otherwise one token would be repeated
        if name.endswith("bias"):
            torch.nn.init.zeros_(weight)
    torch.nn.init.normal_(model.model.decoder.embed_positions.weight, std=4.0)
    source["attention_mask"][1, 1:] = 0  # done long before the others
    rows, how = [], {"suppress_tokens": [0], "extra_target_tokens": 3, "num_beams": num_beams}
    model.lm_head.register_forward_pre_hook(lambda module, given: rows.append(len(given[0])))
    hooked = model.generate(**source, **how)
    assert set(rows) == {3 * num_beams}
    assert min(len(set(row)) for row in hooked[::2, 4:].tolist()) > 1
    model.lm_head._forward_pre_hooks.clear()
    assert torch.equal(model.generate(**source, **how), hooked)
