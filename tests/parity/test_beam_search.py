"""The searches against brute force, against a plain loop that knows no batch and no cache, and against the model."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close
from transformers.generation import GenerationMixin

from vaswani.models import modeling_vaswani, search_vaswani
from vaswani.models.generation_vaswani import ModelState
from vaswani.models.incremental_vaswani import IncrementalState
from vaswani.models.search_vaswani import PapersRules, TransformersRules, length_penalty


# The same mathematics in another order of additions, on values of about 10 in fp32.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
END, PAD = 0, 4
SMALL = {"vocab_size": 5, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
# Whatever depends on one width or one depth where another is meant fails with these.
UNEVEN = {"decoder_layers": 3, "encoder_attention_heads": 4, "head_dim": 6, "v_head_dim": 4}
VARIANTS = [
    UNEVEN,
    {"attention_bias": False, "tie_word_embeddings": False},
    {"position_embedding_type": "learned", "max_position_embeddings": 40},
    {"activation_function": "swish", "layer_norm_eps": 0.1, "lm_head_bias": True},
]


@torch.no_grad()
def redraw(model, spread: float = 0.7):
    """Draw other weights, of which sentences of all lengths come."""
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.normal_(0, spread)
    model.model.shared.weight[model.config.pad_token_id] = 0
    return model


# All sequences of up to five words and an end, among three words: 364.
SEQUENCES = [(*words, END) for count in range(6) for words in itertools.product((1, 2, 3), repeat=count)]
TARGETS = torch.tensor([sequence + (-100,) * (6 - len(sequence)) for sequence in SEQUENCES])
LENGTHS = torch.tensor([len(sequence) for sequence in SEQUENCES])


@torch.no_grad()
def log_probabilities(model, source: torch.Tensor) -> torch.Tensor:
    """Return log P(Y|X) of all sequences."""
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(TARGETS)
    encoder_outputs = (model.model.encoder(source).last_hidden_state.expand(len(TARGETS), -1, -1),)
    log_probs = model(encoder_outputs=encoder_outputs, decoder_input_ids=decoder_input_ids).logits.log_softmax(-1)
    chosen = log_probs.gather(-1, TARGETS.clamp(min=0)[..., None])[..., 0]
    return chosen.masked_fill(TARGETS < 0, 0).sum(1)


def count_optima_found(model, models: int) -> tuple[int, set[int]]:
    """Return of how many random models the search finds the best of all sequences, and the lengths of these."""
    found, lengths = 0, set()
    for number in range(models):
        torch.manual_seed(number)
        redraw(model)
        source, alpha = torch.randint(1, 4, (1, 4)), (0.6, 0.0, 1.0, 2.0, -0.5)[number % 5]
        scores = log_probabilities(model, source) / ((5 + LENGTHS) / 6) ** alpha
        best = SEQUENCES[int(scores.argmax())]
        # As many hypotheses as there are words to the fifth: nothing is ever left out.
        output = model.generate(
            source, num_beams=243, length_penalty_alpha=alpha, max_new_tokens=6, return_dict_in_generate=True
        )
        tokens = output.sequences[0, 1:].tolist()
        is_optimal = tuple(tokens) == best and abs(output.sequences_scores[0] - scores.max()) < CLOSE["atol"]
        found, lengths = found + int(is_optimal), lengths | {len(best)}
    return found, lengths


def test_a_beam_as_wide_as_the_search_space_finds_the_optimum(random_model):
    assert count_optima_found(random_model(**SMALL), 300) == (300, {1, 2, 3, 4, 5, 6})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda length, alpha: length**alpha,  # transformers'
        lambda length, alpha: (5 + length) ** alpha / 6,
        lambda length, alpha: ((4 + length) / 6) ** alpha,  # the end not counted
    ],
)
def test_a_wrong_penalty_is_found_out(wrong, random_model, monkeypatch):
    monkeypatch.setattr(search_vaswani, "length_penalty", wrong)
    assert count_optima_found(random_model(**SMALL), 25)[0] < 20


@torch.no_grad()
def plain_beam_search(model, source, beams, alpha, limit, wanted, prefix=(), allows=lambda tokens: True):
    """Search for one sentence: every hypothesis is a tuple, and goes through the whole model at every step.

    It ends as the original code did, when no finished hypothesis could be beaten, whatever is wanted.
    """
    banned = model.config.pad_token_id
    alive, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        continuations = []
        for score, tokens in alive:
            ids = torch.tensor([[banned, *prefix, *tokens]])
            log_probs = model(source, decoder_input_ids=ids, use_cache=False).logits[0, -1].log_softmax(-1).tolist()
            continuations += [
                (score + log_prob, (*tokens, token))
                for token, log_prob in enumerate(log_probs)
                if token != banned and allows((*tokens, token))
            ]
        continuations = sorted(continuations, reverse=True)[: 2 * beams]
        finished += [(score / length_penalty(length, alpha), y) for score, y in continuations if y[-1] == END]
        finished = sorted(finished, reverse=True)[:beams]
        alive = [(score, y) for score, y in continuations if y[-1] != END][:beams]
        if not alive:
            break
        reachable = max(length_penalty(length + 1, alpha), length_penalty(limit, alpha))
        if len(finished) >= wanted and finished[-1][0] > alive[0][0] / reachable:
            break
    return [*finished, *((score / length_penalty(len(y), alpha), y) for score, y in alive)][:wanted]


def sources_of(model, lengths: list[int]) -> dict[str, torch.Tensor]:
    """Return random sources of these lengths, padded on the right."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, model.config.vocab_size - 1, mask.shape).masked_fill(~mask, model.config.pad_token_id)
    return {"input_ids": ids, "attention_mask": mask.long()}


def strip(tokens: torch.Tensor, model) -> tuple[int, ...]:
    return tuple(token for token in tokens.tolist() if token != model.config.pad_token_id)


def both_states(model, source: dict[str, torch.Tensor], beams: int) -> list:
    """Return the fast state and the one that asks the model, ready for the sentences of a source."""
    states, made = model.get_encoder()(**source).last_hidden_state, []
    for is_fast in (True, False):
        given = {"encoder_outputs": (states.repeat_interleave(beams, 0),), "use_cache": True}
        given["attention_mask"] = source["attention_mask"].repeat_interleave(beams, 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(modeling_vaswani, "is_as_written", lambda *_, is_fast=is_fast: is_fast)
            made.append(model.decoder_state(beams, given))
    assert [type(state) for state in made] == [IncrementalState, ModelState]
    return made


@pytest.mark.parametrize("is_fast", [True, False], ids=["fast", "by the model"])
@pytest.mark.parametrize("beams", range(2, 9))
def test_it_equals_a_plain_loop(beams, is_fast, random_model, monkeypatch):
    monkeypatch.setattr(modeling_vaswani, "is_as_written", lambda *_: is_fast)
    model = random_model(vocab_size=9)
    for alpha in (0.6, 1.5, -1.0):
        redraw(model, 0.5)
        inputs = sources_of(model, [7, 2, 5, 1, 4])
        wanted = (beams + 1) // 2
        output = model.generate(
            **inputs,
            num_beams=beams,
            num_return_sequences=wanted,
            length_penalty_alpha=alpha,
            extra_target_tokens=4,
            return_dict_in_generate=True,
        )
        expected = []
        for ids, mask in zip(*inputs.values(), strict=True):
            source = ids[mask == 1][None]
            expected += plain_beam_search(model, source, beams, alpha, source.shape[1] + 4, wanted)
        assert [strip(tokens[1:], model) for tokens in output.sequences] == [tokens for _, tokens in expected]
        assert_close(output.sequences_scores, torch.tensor([score for score, _ in expected]), **CLOSE)


def test_the_plain_loop_stops_early_and_is_cut_off(random_model):
    # What the comparison above would not show if its models never did either.
    model, lengths, ends = random_model(vocab_size=9), [], []
    for ids in sources_of(model, [4] * 20)["input_ids"]:
        for _, tokens in plain_beam_search(redraw(model, 0.5), ids[None], 4, 0.6, 6, 2):
            lengths.append(len(tokens))
            ends.append(tokens[-1] == END)
    assert len(set(lengths)) >= 4
    assert {*ends} == {True, False}


@pytest.mark.smoke
@pytest.mark.parametrize("others", [{}, {"no_repeat_ngram_size": 2}], ids=str)
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_neither_batch_size_nor_padding_nor_order_changes_a_translation(beams, others, random_model):
    model = redraw(random_model(vocab_size=50), 0.4)
    settings = {"num_beams": beams, "length_penalty_alpha": 0.6, "extra_target_tokens": 10, **others}
    inputs = sources_of(model, [3, 11, 1, 6, 6, 9, 2, 4, 12, 5])
    together = [strip(tokens, model) for tokens in model.generate(**inputs, **settings)]
    assert len({len(tokens) for tokens in together}) > 3
    alone = [
        strip(model.generate(ids[mask == 1][None], attention_mask=mask[mask == 1][None], **settings)[0], model)
        for ids, mask in zip(*inputs.values(), strict=True)
    ]
    assert alone == together
    order = torch.randperm(10)
    wider = {name: torch.nn.functional.pad(tensor[order], (0, 5)) for name, tensor in inputs.items()}
    turned = [strip(tokens, model) for tokens in model.generate(**wider, **settings)]
    assert turned == [together[index] for index in order]


@pytest.mark.smoke
@pytest.mark.parametrize("settings", [{}, {"no_repeat_ngram_size": 2}, {"min_new_tokens": 5}], ids=str)
def test_greedy_search_equals_transformers(settings, random_model):
    model = redraw(random_model(vocab_size=50), 0.4)
    inputs = sources_of(model, [3, 11, 1, 6]) | settings | {"max_new_tokens": 12}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_sample", None, raising=False)  # ours, not theirs
        ours = model.generate(**inputs)
    theirs = model.generate(**inputs, return_dict_in_generate=True, output_logits=True)
    assert len(theirs.logits) == theirs.sequences.shape[1] - 1
    assert_close(ours, theirs.sequences)


@pytest.mark.smoke
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@torch.no_grad()
def test_steps_equal_the_model(variant, beams, random_model):
    model = random_model(**variant)
    inputs = sources_of(model, [5, 7, 2, 4])
    states = model.model.encoder(**inputs).last_hidden_state
    fast, by_model = both_states(model, inputs, beams)
    paths, parents = torch.empty(4, beams, 0, dtype=torch.int64), None
    for length in range(1, 36):  # more than there is room for at first
        if length in (9, 20):
            kept = torch.tensor([0, 3] if length == 9 else [1])
            states, paths, parents = states[kept], paths[kept], parents[kept]
            inputs = {name: tensor[kept] for name, tensor in inputs.items()}
            fast.select(kept)
            by_model.select(kept)
        tokens = torch.randint(0, model.config.vocab_size, (len(paths), beams))
        if parents is not None:
            paths = paths.gather(1, parents[..., None].expand_as(paths))
        paths = torch.cat([paths, tokens[..., None]], dim=2)
        expected = model(
            encoder_outputs=(states.repeat_interleave(beams, dim=0),),
            attention_mask=inputs["attention_mask"].repeat_interleave(beams, dim=0),
            decoder_input_ids=paths.flatten(0, 1),
            use_cache=False,
        ).logits[:, -1]
        for state in (fast, by_model):
            assert_close(state.step(tokens[..., None], parents), expected, rtol=1e-4, atol=1e-5)
        parents = torch.randint(0, beams, tokens.shape)


@pytest.mark.parametrize("beams", [3, 5], ids=["as they are", "packed"])
def test_bfloat16_steps_are_no_worse_than_the_models(beams, random_model):
    model = random_model(**UNEVEN)
    inputs = sources_of(model, [5, 7, 2, 4])
    tokens = torch.randint(1, 22, (4, beams, 6))

    @torch.no_grad()
    def logits(kind, dtype):
        state = both_states(model.to(dtype), inputs, beams)[kind]
        return torch.stack([state.step(column, None).float() for column in tokens.split(1, dim=-1)])

    fast, by_model = 0, 1
    exact = logits(by_model, torch.float32)
    errors = [(logits(kind, torch.bfloat16) - exact).abs().mean() for kind in (fast, by_model)]
    assert 0 < errors[0] < 1.5 * errors[1]


@pytest.mark.smoke
def test_a_prefix_is_continued_and_not_counted(random_model):
    model, prefix = redraw(random_model(vocab_size=9), 0.5), (3, 5, 2)
    inputs = sources_of(model, [4, 6])
    given = torch.tensor([[model.config.pad_token_id, *prefix]] * 2)
    output = model.generate(
        **inputs,
        decoder_input_ids=given,
        num_beams=3,
        length_penalty_alpha=0.6,
        extra_target_tokens=3,
        return_dict_in_generate=True,
    )
    for row, (ids, mask) in enumerate(zip(*inputs.values(), strict=True)):
        source = ids[mask == 1][None]
        [(score, tokens)] = plain_beam_search(model, source, 3, 0.6, source.shape[1] + 3, 1, prefix)
        assert strip(output.sequences[row, 1:], model) == (*prefix, *tokens)
        assert math.isclose(output.sequences_scores[row], score, abs_tol=1e-4)


@pytest.mark.smoke
def test_no_two_tokens_come_twice_where_that_is_forbidden(random_model):
    model = redraw(random_model(vocab_size=9), 0.5)
    inputs = sources_of(model, [6, 3])

    def allows(tokens):
        pairs = list(itertools.pairwise((model.config.pad_token_id, *tokens)))
        return len(set(pairs)) == len(pairs)

    output = model.generate(
        **inputs, num_beams=4, length_penalty_alpha=0.6, extra_target_tokens=9, no_repeat_ngram_size=2
    )
    for row, (ids, mask) in enumerate(zip(*inputs.values(), strict=True)):
        source = ids[mask == 1][None]
        [(_, tokens)] = plain_beam_search(model, source, 4, 0.6, source.shape[1] + 9, 1, allows=allows)
        assert strip(output[row], model) == tokens


@pytest.mark.smoke
def test_scores_of_steps_add_up_to_those_of_sequences(random_model):
    model = redraw(random_model(vocab_size=9), 0.5)
    output = model.generate(
        **sources_of(model, [4, 6, 1]),
        num_beams=4,
        num_return_sequences=3,
        length_penalty_alpha=0.6,
        extra_target_tokens=5,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    steps = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    lengths = (output.beam_indices >= 0).sum(1)
    assert_close(steps.sum(1) / length_penalty(lengths, 0.6), output.sequences_scores, **CLOSE)
    assert len(output.logits) == len(output.scores)
    assert_close(output.logits[0].log_softmax(-1)[:, :8], output.scores[0][:, :8])


EVERYTHING = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


def count_stocks_found(model, models: int) -> tuple[int, set[int]]:
    """Return of how many random models we find what transformers' own beam search does, and how long the results are.

    The settings of the search change from model to model.
    """
    found, lengths, pad = 0, set(), model.config.pad_token_id
    for number in range(models):
        torch.manual_seed(number)
        redraw(model, spread=0.25)
        given = sources_of(model, [6, 3, 5, 1]) | {
            "num_beams": 2 + number % 3,
            "num_return_sequences": 1 + number % 2,
            "length_penalty": (1.0, 0.0, 2.0, -1.0, 0.6)[number % 5],
            "early_stopping": (False, True, "never")[number // 5 % 3],
            "max_new_tokens": (2, 7, 15)[number // 3 % 3],
            "min_new_tokens": 2 if number % 7 == 0 else None,
            "no_repeat_ngram_size": 2 if number % 11 == 0 else None,
            "eos_token_id": [END, 3] if number % 13 == 0 else END,
            "suppress_tokens": [pad],
        }
        stock = GenerationMixin.generate(model, **given, **EVERYTHING)
        ours, sequences = model.generate(**given, **EVERYTHING), model.generate(**given)
        are_equal = torch.equal(sequences, stock.sequences) and torch.equal(ours.beam_indices, stock.beam_indices)
        found += int(are_equal and torch.allclose(ours.sequences_scores, stock.sequences_scores, **CLOSE))
        lengths |= set((sequences[:, 1:] != pad).sum(1).tolist())
    return found, lengths


def test_with_transformers_penalty_it_finds_what_transformers_search_finds(random_model):
    found, lengths = count_stocks_found(random_model(vocab_size=9), 120)
    assert found == 120
    assert lengths >= {1, 2, 3, 7, 15}


@pytest.mark.parametrize(
    "wrong",
    [
        {"penalty": lambda self, length: (length + 1) ** self.length_penalty},  # with the decoder's start
        {"finishing": PapersRules.finishing},
        {"is_decided": lambda self, hypotheses, wanted: hypotheses.finished_scores[:, -1] > -math.inf},
        {"is_decided": lambda self, hypotheses, wanted: hypotheses.finished_scores[:, 0] == math.inf},  # never
    ],
    ids=["penalty", "finishing", "at once", "at the limit"],
)
def test_other_rules_than_transformers_are_found_out(wrong, random_model, monkeypatch):
    [(name, rule)] = wrong.items()
    monkeypatch.setattr(TransformersRules, name, rule)
    assert count_stocks_found(random_model(vocab_size=9), 60)[0] < 60
