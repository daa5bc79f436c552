import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close
from transformers import CompileConfig

from vaswani import TranslationPipeline
from vaswani.ensemble import Ensemble, EnsembleState
from vaswani.errors import UserError
from vaswani.evaluation import describe_decoding, negative_log_likelihood
from vaswani.models import modeling_vaswani
from vaswani.models.allowed_tokens_vaswani import AllowedTokens
from vaswani.models.fusion_vaswani import AS_WRITTEN
from vaswani.models.modeling_vaswani import VaswaniForConditionalGeneration
from vaswani.translation import translate


pytestmark = pytest.mark.smoke
SENTENCES = ["one two", "three", "one two three four five six"]


@pytest.fixture
def members(random_model, tiny_config):
    """Return three models with one vocabulary, the second of another depth, that do not repeat themselves."""
    models = [random_model(tiny_config(vocab_size=265, decoder_layers=layers)).eval() for layers in (2, 1, 2)]
    for model in models:
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.data.normal_(0, 0.5)
        model.model.shared.weight.data[model.config.pad_token_id] = 0
    return models


@torch.no_grad()
def mean_probabilities(members, source, tokens):
    """Return those of the next token, computed without a cache, a search or a logarithm."""
    return sum(member(**source, decoder_input_ids=tokens).logits[:, -1].softmax(-1) for member in members) / 3


def test_greedy_search_takes_the_token_of_the_highest_mean_probability(members, tokenizer):
    source = tokenizer("one two", return_tensors="pt")
    pad = members[0].config.pad_token_id
    tokens = torch.tensor([[pad]])
    for _ in range(8):
        probabilities = mean_probabilities(members, source, tokens)
        probabilities[:, pad] = 0
        tokens = torch.cat([tokens, probabilities.argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(
        Ensemble(members).generate(**source, max_new_tokens=8, min_new_tokens=8, eos_token_id=pad), tokens
    )
    alone = members[0].generate(**source, max_new_tokens=8, min_new_tokens=8, eos_token_id=pad)
    assert not torch.equal(alone, tokens)


@pytest.mark.parametrize("changed", [False, True], ids=["as written", "hooked"])
def test_the_score_of_beam_search_is_made_of_mean_probabilities(members, tokenizer, changed):
    if changed:  # computed by transformers' methods, without our faster ones
        members[1].model.encoder.layers[0].fc1.register_forward_hook(lambda *given: None)
        members[2].model.decoder.layers[0].fc1.register_forward_hook(lambda *given: None)
    settings = {"num_beams": 3, "length_penalty_alpha": 0.0, "max_new_tokens": 6, "return_dict_in_generate": True}
    source = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    output = Ensemble(members).generate(**source, **settings)
    for row, score in enumerate(output.sequences_scores):
        one, tokens = {name: ids[row : row + 1] for name, ids in source.items()}, output.sequences[row : row + 1]
        length = int((tokens[0, 1:] != members[0].config.pad_token_id).sum())
        expected = sum(
            mean_probabilities(members, one, tokens[:, : end + 1])[0, tokens[0, end + 1]].log()
            for end in range(length)
        )
        assert_close(score, expected, atol=1e-4, rtol=1e-4)


def test_copies_of_a_model_translate_as_it_does(members, tokenizer):
    given = {"num_beams": 3, "num_return_sequences": 3, "with_scores": True, "max_new_tokens": 9}
    one, two = (translate(model, tokenizer, SENTENCES, **given) for model in (members[0], Ensemble([members[0]] * 2)))
    assert [[each.text for each in row] for row in one] == [[each.text for each in row] for row in two]
    assert [each.score for row in one for each in row] == pytest.approx([each.score for row in two for each in row])


@pytest.mark.parametrize("num_beams", [1, 3])
def test_sentences_that_are_done_are_dropped_by_all_members(members, tokenizer, num_beams):
    ensemble, dropped = Ensemble(members), []
    given = {"num_beams": num_beams, "extra_target_tokens": 0}
    sentences = ["x" * length for length in (30, 2, 20, 3, 4, 2)]
    together = translate(ensemble, tokenizer, sentences, **given)
    assert together == [translate(ensemble, tokenizer, [sentence], **given)[0] for sentence in sentences]
    state = EnsembleState([SimpleNamespace(select=dropped.append)] * 3)
    state.select([0, 2])
    assert dropped == [[0, 2]] * 3


def test_all_members_compile_or_none(members, tokenizer, monkeypatch):
    compiled, said = replace(AS_WRITTEN), []

    def noting(method):
        def run(self, *args):
            said.append(args[-1])
            return method(self, *args[:-1])

        return run

    kind = VaswaniForConditionalGeneration
    for name in ("encode_source", "decoder_state"):
        monkeypatch.setattr(kind, name, noting(getattr(kind, name)))
    monkeypatch.setattr(modeling_vaswani, "compiled", lambda: compiled)
    source = tokenizer("one two", return_tensors="pt")
    Ensemble(members).generate(**source, max_new_tokens=2, compile_config=CompileConfig())
    assert [each is compiled for each in said] == [True] * 6
    members[2].model.decoder.layers[0].fc1.register_forward_hook(lambda *given: None)
    assert Ensemble(members).fused(CompileConfig()) is None


def test_workers_and_a_shortlist_serve_an_ensemble(members, tokenizer, monkeypatch):
    monkeypatch.setattr("vaswani.workers.usable_cores", lambda: 2)
    allowed = torch.arange(0, 264, 3)
    given = {"num_beams": 2, "max_new_tokens": 5, "max_batch_tokens": 1, "shortlist": lambda ids: allowed}
    one, two = (translate(Ensemble(members), tokenizer, SENTENCES, workers=count, **given) for count in (1, 2))
    assert one == two
    [whole] = translate(Ensemble(members), tokenizer, SENTENCES[:1], num_beams=2, max_new_tokens=5)
    assert whole != one[0]


def test_what_a_shortlist_leaves_has_the_mean_probabilities_whether_scores_are_asked_for_or_not(members, tokenizer):
    source = tokenizer(SENTENCES[2], return_tensors="pt")
    how = {"num_beams": 3, "max_new_tokens": 6, "return_dict_in_generate": True}
    few = [AllowedTokens(torch.arange(0, 264, 3))]
    cut, whole = (
        Ensemble(members).generate(**source, **how, logits_processor=few, output_scores=with_scores)
        for with_scores in (False, True)
    )
    assert torch.equal(cut.sequences, whole.sequences)
    assert torch.allclose(cut.sequences_scores, whole.sequences_scores, atol=1e-5)


def test_likelihood_is_that_of_mean_probabilities(members):
    ids, mask, labels = (
        torch.randint(1, 264, (2, 5)),
        torch.ones(2, 5, dtype=torch.int64),
        torch.randint(1, 264, (2, 4)),
    )
    start = torch.full((2, 1), members[0].config.decoder_start_token_id)
    source, nll = {"input_ids": ids, "attention_mask": mask}, 0.0
    for end in range(4):
        probabilities = mean_probabilities(members, source, torch.cat([start, labels[:, :end]], dim=1))
        nll -= probabilities.gather(1, labels[:, end : end + 1]).log().sum().item()
    assert negative_log_likelihood(Ensemble(members), [(ids, mask, labels)]) == pytest.approx(nll / 8, abs=1e-4)


def test_a_source_without_a_mask_is_read_up_to_its_padding(members, tokenizer):
    ensemble, source = Ensemble(members), tokenizer(SENTENCES, padding=True, return_tensors="pt")
    expected = ensemble.generate(**source, max_new_tokens=6)
    assert torch.equal(ensemble.generate(source.input_ids, max_new_tokens=6), expected)
    assert torch.equal(ensemble.generate(input_ids=source.input_ids, max_new_tokens=6), expected)


def test_a_pipeline_takes_an_ensemble(members, tokenizer):
    pipe = TranslationPipeline(model=Ensemble(members), tokenizer=tokenizer)
    texts = [found["translation_text"] for found in pipe(SENTENCES, max_new_tokens=6)]
    assert texts == [best.text for [best] in translate(Ensemble(members), tokenizer, SENTENCES, max_new_tokens=6)]


def test_what_an_ensemble_cannot_do_is_refused(members, tokenizer):
    ensemble, source = Ensemble(members), tokenizer("one two", return_tensors="pt")
    for settings in (
        {"do_sample": True},
        {"num_beams": 1, "return_dict_in_generate": True},
        {"output_attentions": True},
    ):
        with pytest.raises(ValueError, match="an ensemble knows beam search, and greedy search without scores"):
            ensemble.generate(**source, **settings)
    with pytest.raises(ValueError, match="an ensemble must be given input_ids"):
        ensemble.generate(encoder_outputs=members[0].get_encoder()(**source), max_new_tokens=2)
    with pytest.raises(ValueError, match="an ensemble must be given input_ids"):
        ensemble(**source, decoder_input_ids=source["input_ids"], encoder_outputs=members[0].get_encoder()(**source))
    with pytest.raises(ValueError, match="cannot be saved"):
        ensemble.save_pretrained("nowhere")
    with pytest.raises(UserError, match="an ensemble knows beam search, and greedy search without scores"):
        translate(ensemble, tokenizer, SENTENCES, num_beams=1, with_scores=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 270}, "model 2 of an ensemble has vocab_size=270, but the first has 265"),
        (
            {"position_embedding_type": "learned", "max_position_embeddings": 40},
            "model 2 of an ensemble has max_position_embeddings=40, but the first has None",
        ),
    ],
)
def test_members_must_count_alike(members, random_model, tiny_config, change, message):
    with pytest.raises(UserError, match=message):
        Ensemble([members[0], random_model(tiny_config(**{"vocab_size": 265} | change))])


@pytest.mark.parametrize("asked", [{"labels": torch.ones(1, 2, dtype=torch.int64)}, {"output_attentions": True}])
def test_an_ensemble_returns_logits_alone(asked, members):
    ids = torch.ones(1, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=f"^{next(iter(asked))} must be left out: an ensemble returns logits alone$"):
        Ensemble(members)(ids, ids, decoder_input_ids=ids, **asked)
    with pytest.raises(ValueError, match="return_dict=False must be left out"):
        Ensemble(members)(ids, ids, decoder_input_ids=ids, return_dict=False)


def test_members_must_be_transformers(members):
    with pytest.raises(UserError, match=re.escape("members=[] of an ensemble must be one model or more")):
        Ensemble([])
    with pytest.raises(UserError, match="model 2 of an ensemble is a Linear: all must be Transformers"):
        Ensemble([members[0], torch.nn.Linear(2, 2)])


def test_an_ensemble_is_named(members):
    ensemble = Ensemble(members)
    assert ensemble.generation_config is members[0].generation_config
    assert describe_decoding(ensemble, {"num_beams": 1}).endswith("greedy, ensemble of 3")
