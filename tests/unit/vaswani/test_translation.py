import gc
from weakref import ref

import pytest
import torch
from marian_twin import marian_twin
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, MarianConfig, MarianMTModel, SuppressTokensLogitsProcessor

from vaswani import TranslationPipeline, translation, workers
from vaswani.errors import UserError
from vaswani.models.allowed_tokens_vaswani import AllowedTokens
from vaswani.tokenization import wrap_tokenizer
from vaswani.translation import make_batches, translate


pytestmark = pytest.mark.smoke
SENTENCES = ["one two", "", "three", "one two three four five six", "  ", "two"]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_neither_order_nor_batch_size_changes_a_translation_or_a_score(model, tokenizer, num_beams):
    given = {"max_new_tokens": 9, "num_beams": num_beams, "with_scores": True, "num_return_sequences": num_beams}
    one_by_one = translate(model, tokenizer, SENTENCES, max_batch_tokens=1, **given)
    together = translate(model, tokenizer, SENTENCES, max_batch_tokens=1000, **given)
    turned = translate(model, tokenizer, SENTENCES[::-1], max_batch_tokens=20, **given)[::-1]
    for other in (together, turned):
        assert [[one.text for one in row] for row in other] == [[one.text for one in row] for row in one_by_one]
        scores = [[one.score for row in rows for one in row] for rows in (one_by_one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)  # sums in fp32 depend on the padding's length
    assert [len(row) for row in together] == [num_beams] * len(SENTENCES)
    assert together[1] == together[4] == [("", 0.0)] * num_beams


@pytest.mark.parametrize("given", [{}, {"min_new_tokens": 66}, {"min_length": 67}], ids=str)
def test_beside_a_longer_sentence_a_greedy_translation_ends_where_it_would_alone(given, model, tokenizer):
    """Random weights find no end, so that each is as long as it may be."""
    sentences = ["one", "one two three four five six"]
    together = translate(model, tokenizer, sentences, with_scores=True, num_beams=1, **given)
    for sentence, [found] in zip(sentences, together, strict=True):
        [[alone]] = translate(model, tokenizer, [sentence], with_scores=True, num_beams=1, **given)
        [[unscored]] = translate(model, tokenizer, [sentence], num_beams=1, **given)
        assert found.text == alone.text == unscored.text
        assert found.score == pytest.approx(alone.score, abs=1e-3)


@pytest.mark.parametrize("given", [{}, {"min_new_tokens": 4}, {"no_repeat_ngram_size": 1}], ids=str)
def test_the_score_of_greedy_search_is_the_log_probability(given, model, tokenizer):
    """Whatever a setting rules out keeps its share, as in beam search."""
    with torch.no_grad():
        model.get_input_embeddings().weight[0] *= 3  # </s> is likely
    [[best]] = translate(model, tokenizer, ["one two"], max_new_tokens=6, with_scores=True, **given)
    source = tokenizer("one two", return_tensors="pt")
    output = model.generate(**source, max_new_tokens=6, **given)
    logits = model(**source, decoder_input_ids=output[:, :-1]).logits
    logits[..., model.config.pad_token_id] = -torch.inf  # never generated
    expected = logits.log_softmax(-1).gather(-1, output[:, 1:, None]).sum()
    assert best.score == pytest.approx(expected.item(), abs=1e-4)


def test_the_score_of_greedy_search_with_a_shortlist_is_the_log_probability_among_its_tokens(model, tokenizer):
    ids = torch.arange(0, 256, 2)
    [[best]] = translate(model, tokenizer, ["one"], max_new_tokens=6, with_scores=True, shortlist=lambda sources: ids)
    source = tokenizer("one", return_tensors="pt")
    output = model.generate(**source, max_new_tokens=6, logits_processor=[AllowedTokens(ids)])
    logits = model(**source, decoder_input_ids=output[:, :-1]).logits[..., ids]
    expected = logits.log_softmax(-1).gather(-1, output[:, 1:, None] // 2).sum()
    assert best.score == pytest.approx(expected.item(), abs=1e-4)


def test_the_score_of_greedy_search_ends_with_the_sentence_whatever_is_beside_it(random_model, tiny_config, tokenizer):
    for seed in range(20):
        torch.manual_seed(seed)
        model = random_model(tiny_config(vocab_size=265, lm_head_bias=True))
        with torch.no_grad():
            model.lm_head.bias[0] += 2.5  # </s>, sooner or later
        batch = tokenizer(["one two", "six"], padding=True, return_tensors="pt")
        lengths = (model.generate(**batch, max_new_tokens=9) != model.config.pad_token_id).sum(1)
        if lengths[0] != lengths[1]:
            break
    assert lengths[0] != lengths[1]
    together = translate(model, tokenizer, ["one two", "six"], max_new_tokens=9, with_scores=True)
    alone = [translate(model, tokenizer, [text], max_new_tokens=9, with_scores=True)[0] for text in ("one two", "six")]
    assert [best.score for [best] in together] == pytest.approx([best.score for [best] in alone], abs=1e-4)


def test_a_translation_keeps_the_spaces_before_its_punctuation(model):
    """As Moses' tokens have them. Of a vocabulary of words: with a BPE, transformers takes none away."""
    text = "one , two n't ."
    types = {word: number for number, word in enumerate(["</s>", *text.split(), "<pad>"])}
    words = Tokenizer(models.WordLevel(types, unk_token="</s>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = wrap_tokenizer(words)
    model.generate = lambda **given: torch.tensor([tokenizer(text).input_ids])
    [[best]] = translate(model, tokenizer, ["one"])
    assert best.text == text


def test_it_tells_how_far_it_is(model, tokenizer):
    counts = []
    translate(model, tokenizer, SENTENCES, max_batch_tokens=8, on_batch=counts.append, max_new_tokens=2)
    assert sum(counts) == len(SENTENCES)
    assert counts[0] == 2
    assert translate(model, tokenizer, []) == []


def test_a_sentence_longer_than_the_learned_positions_is_cut_and_the_others_are_not(
    random_model, tiny_config, tokenizer, caplog
):
    model = random_model(tiny_config(vocab_size=265, position_embedding_type="learned", max_position_embeddings=12))
    translations = translate(model, tokenizer, ["one " * 200, "two"], num_beams=2)
    assert translations[1] == translate(model, tokenizer, ["two"], num_beams=2)[0]
    assert "1 of 2 sentences are cut off after 12 tokens; the first of them has 602: one one" in caplog.text
    for limit, counts in ((8, 8), (20, 12)):  # the smaller of both
        caplog.clear()
        translate(model, tokenizer, ["one " * 200], max_source_length=limit)
        assert f"cut off after {counts} tokens" in caplog.text


@pytest.mark.parametrize("positions", [24, 1024])
def test_other_models_are_limited_by_the_source_and_their_table_of_positions(positions, tokenizer):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    ids = {"pad_token_id": 264, "eos_token_id": 0, "decoder_start_token_id": 264, "forced_eos_token_id": None}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": positions}
    model = MarianMTModel(MarianConfig(vocab_size=265, **sizes, **heads, **ids)).eval()
    asked = []

    def generate(**given):
        asked.append({name: given[name] for name in ("max_new_tokens", "max_length") if name in given})
        return MarianMTModel.generate(model, **given)

    model.generate = generate
    length = len(tokenizer("one two").input_ids)
    translate(model, tokenizer, ["one two"])
    translate(model, tokenizer, ["one two"], max_length=4)
    TranslationPipeline(model=model, tokenizer=tokenizer)("one two")
    TranslationPipeline(model=model, tokenizer=tokenizer)("one two", max_new_tokens=4)
    expected = {"max_new_tokens": min(length + 50, positions - 1)}
    assert asked == [expected, {"max_length": 4}, expected, {"max_new_tokens": 4}]


@pytest.mark.parametrize("limit", [4, 14, None])
def test_only_so_much_of_a_long_sentence_is_translated(limit, model, tokenizer, caplog):
    seen = []
    model.model.encoder.register_forward_pre_hook(
        lambda module, arguments, named: seen.append(named["input_ids"].tolist()), with_kwargs=True
    )
    translate(model, tokenizer, ["one two three four", "six"], max_batch_tokens=1, max_source_length=limit)
    long, short = (tokenizer(text).input_ids for text in ("one two three four", "six"))
    assert seen == [[long if limit != 4 else [*long[:3], 0]], [short]]
    assert ("1 of 2 sentences are cut off after 4 tokens" in caplog.text) == (limit == 4)


def test_of_an_empty_sentence_there_are_as_many_translations_as_of_others(model, tokenizer):
    model.generation_config.update(num_beams=2, num_return_sequences=2)
    config = GenerationConfig(num_beams=4, num_return_sequences=3, max_new_tokens=3)
    assert [len(found) for found in translate(model, tokenizer, ["", "one"], generation_config=config)] == [3, 3]


def test_a_sentence_is_not_cut_to_nothing(model, tokenizer):
    with pytest.raises(UserError, match=r"^max_source_length=0 must be at least 1$"):
        translate(model, tokenizer, ["one"], max_source_length=0)


def test_batches_are_filled_with_the_longest_first():
    lengths = {7: 2, 3: 5, 8: 5, 1: 3, 4: 1, 9: 40}
    assert list(make_batches(lengths, max_tokens=10, bytes_per_token=0)) == [[9], [3, 8], [1, 7, 4]]
    assert list(make_batches(lengths, max_tokens=9, bytes_per_token=0)) == [[9], [3], [8], [1, 7, 4]]


def test_large_batches_have_one_of_few_sizes():
    assert [len(batch) for batch in make_batches(dict.fromkeys(range(101), 5), 5 * 37, 0)] == [36, 36, 29]


def test_scores_of_a_batch_fit_into_memory(monkeypatch):
    monkeypatch.setattr(translation, "MAX_SCORE_BYTES", 110 * 8)
    # Of 5 tokens and 50 more, two sentences fit; of 6 tokens only one does.
    assert list(make_batches(dict.fromkeys(range(5), 5), 100, bytes_per_token=8)) == [[0, 1], [2, 3], [4]]
    assert list(make_batches(dict.fromkeys(range(2), 6), 100, bytes_per_token=8)) == [[0], [1]]


def test_our_beam_search_scores_without_keeping_logits(model, tokenizer):
    generate, asked = model.generate, []

    def watched(**given):
        asked.append(given.get("output_logits"))
        return generate(**given)

    model.generate = watched
    ours, greedy, without, transformers = (
        translate(model, tokenizer, ["one two"], max_new_tokens=5, **given)[0][0].score
        for given in (
            {"num_beams": 2, "with_scores": True},
            {"num_beams": 1, "with_scores": True},
            {"num_beams": 2},
            {"num_beams": 2, "with_scores": True, "output_attentions": True, "length_penalty": 0.0},
        )
    )
    assert asked == [None, True, None, True]
    assert without is None
    assert all(score < 0 for score in (ours, greedy, transformers))


def test_what_a_scored_search_does_not_take_is_refused(model, tokenizer):
    with pytest.raises(UserError, match="length_penalty_alpha='a' must be a number"):
        translate(model, tokenizer, ["one"], with_scores=True, length_penalty_alpha="a")


def test_scores_take_memory_for_each_beam_whoever_asks_for_beams(model, tokenizer, monkeypatch):
    asked, batches = [], translation.make_batches

    def watched(lengths, max_tokens, bytes_per_token, workers):
        asked.append(bytes_per_token)
        return batches(lengths, max_tokens, bytes_per_token, workers)

    monkeypatch.setattr(translation, "make_batches", watched)
    monkeypatch.setattr(type(model), "has_own_search", lambda model, **given: False)
    model.generation_config.num_beams = 3
    for given in ({"with_scores": True}, {"with_scores": True, "num_beams": 2}, {}):
        translate(model, tokenizer, ["one"], max_new_tokens=2, **given)
    assert asked == [4 * 265 * 3, 4 * 265 * 2, 0]


def test_several_workers_get_about_the_same_and_none_too_little(monkeypatch):
    monkeypatch.setattr(translation, "MIN_SHARE", 2)
    sizes = [len(batch) for batch in make_batches(dict.fromkeys(range(14), 5), 1000, 0, workers=2)]
    assert sizes == [7, 3, 2, 2]
    assert [len(batch) for batch in make_batches(dict.fromkeys(range(3), 5), 1000, 0, workers=2)] == [3]
    assert max(len(batch) for batch in make_batches(dict.fromkeys(range(14), 5), 20, 0, workers=2)) == 4


@pytest.mark.parametrize("num_beams", [1, 3])
def test_workers_translate_as_one_does(model, tokenizer, num_beams, monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 3)
    monkeypatch.setattr(translation, "MIN_SHARE", 1)
    given = {"max_new_tokens": 9, "num_beams": num_beams, "with_scores": True, "num_return_sequences": num_beams}
    sentences, counts = [*SENTENCES, "six", "five four"], []
    given["constraint"] = lambda batch: SuppressTokensLogitsProcessor([len(batch)])
    alone = translate(model, tokenizer, sentences, max_batch_tokens=1, **given)
    shared = translate(model, tokenizer, sentences, max_batch_tokens=1, workers=3, on_batch=counts.append, **given)
    assert [[one.text for one in row] for row in shared] == [[one.text for one in row] for row in alone]
    scores = [[one.score for row in rows for one in row] for rows in (shared, alone)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    assert counts == [2, 1, 1, 1, 1, 1, 1]


def test_what_a_model_keeps_between_calls_is_made_before_there_are_workers(model, tokenizer, monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    monkeypatch.setattr(translation, "MIN_SHARE", 1)
    calls = []
    model.generate = lambda **given: calls.append(given) or type(model).generate(model, **given)
    translate(model, tokenizer, SENTENCES, workers=2)
    [given] = calls  # the others were the workers'
    assert (given["max_new_tokens"], len(given["input_ids"])) == (1, 1)
    translate(model, tokenizer, ["one"], workers=2)
    assert len(calls) == 2  # a single batch is translated at once, here


@pytest.mark.parametrize("limits", [{"min_new_tokens": 3, "max_new_tokens": 5}, {"min_length": 3, "max_length": 6}])
def test_limits_of_length_do_not_contradict_what_is_made_before_there_are_workers(
    model, tokenizer, limits, monkeypatch, recwarn, capfd
):
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    monkeypatch.setattr(translation, "MIN_SHARE", 1)
    generate, seen = model.generate, []
    model.generate = lambda **given: seen.append(generate(**given)) or seen[-1]
    translate(model, tokenizer, SENTENCES, workers=2, **limits)
    assert seen[0].shape[1] == 2  # the start, and one token
    assert not [warning for warning in recwarn if "length constraints" in str(warning.message)]
    assert "max_length" not in capfd.readouterr().err


def test_more_workers_than_cores_are_refused(model, tokenizer, monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    with pytest.raises(UserError, match="workers=3 must be at most 2"):
        translate(model, tokenizer, [], workers=3)


def test_what_generate_does_not_take_is_said_in_a_sentence(model, tokenizer):
    with pytest.raises(UserError, match="nonsense"):
        translate(model, tokenizer, ["one"], nonsense=1)
    with pytest.raises(UserError, match=r"^length_penalty_alpha=0\.9 is for models of this library, not for Marian"):
        translate(marian_twin(model), tokenizer, ["one"], length_penalty_alpha=0.9)


def test_what_does_not_fit_into_memory_is_said_in_a_sentence(model, tokenizer):
    model.generate = lambda **given: torch.empty(1 << 50)
    with pytest.raises(UserError, match=r"^a sentence of 7 tokens needs more .*: it must be shorter, or num_beams"):
        translate(model, tokenizer, ["one two"])
    with pytest.raises(UserError, match=r"^2 sentences of up to 7 tokens need more .*: max_batch_tokens, num_beams"):
        translate(model, tokenizer, ["one two", "six"])
    model.generate = lambda **given: torch.empty(2) @ torch.empty(3)  # another RuntimeError
    with pytest.raises(RuntimeError, match="size"):
        translate(model, tokenizer, ["one two"])


def test_of_ten_thousand_tokens_the_model_reads_all(model, tokenizer, caplog):
    seen = []
    model.model.encoder.register_forward_pre_hook(
        lambda module, arguments, named: seen.append(named["input_ids"].tolist()), with_kwargs=True
    )
    text = "six " * 9_999 + "two"
    [[best]] = translate(model, tokenizer, [text], max_new_tokens=3, with_scores=True)
    [[read]] = seen
    assert len(read) > 10_000
    assert read == tokenizer(text, verbose=False).input_ids
    assert -torch.inf < best.score < 0  # NaN, as of a softmax that overflows, is neither
    assert "cut off" not in caplog.text


def test_a_shortlist_is_asked_once_a_batch_for_the_ids_of_its_sentences(model, tokenizer):
    asked = []

    def shortlist(sources):
        asked.append([list(ids) for ids in sources])
        return torch.tensor([0, 3, 7])

    translate(model, tokenizer, ["one", "two three"], num_beams=2, shortlist=shortlist)
    assert asked == [tokenizer(["two three", "one"]).input_ids]
    asked.clear()
    how = {"max_batch_tokens": 1, "num_beams": 2, "shortlist": shortlist}
    translations = translate(model, tokenizer, ["one", "two three", ""], **how)
    assert asked == [[tokenizer("two three").input_ids], [tokenizer("one").input_ids]]
    assert set(tokenizer("".join(best.text for best, *_ in translations)).input_ids) <= {
        0,
        3,
        7,
        *tokenizer("").input_ids,
    }


def test_a_model_is_freed_when_its_user_lets_go_of_it(random_model, tiny_config, tokenizer):
    model = random_model(tiny_config(vocab_size=265))
    alive = ref(model)
    gc.disable()  # which would find it later
    try:
        translate(model, tokenizer, SENTENCES, max_new_tokens=4)
        del model
        assert alive() is None
    finally:
        gc.enable()
