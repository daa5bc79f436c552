import copy
from types import SimpleNamespace

import pytest
import torch
from sacrebleu.metrics import CHRF

from vaswani.errors import UserError
from vaswani.interop import verification
from vaswani.interop.marian import to_marian
from vaswani.interop.verification import Agreement, compare, log_probabilities, made_up_sentences
from vaswani.translation import translate


TEXT = ["one two three four five six"]
SEARCHES = {"beam": ({"num_beams": 2}, {"num_beams": 2, "length_penalty": 0.5})}


def test_the_same_model_agrees(random_model, tokenizer):
    ours = random_model(vocab_size=265)
    sentences = made_up_sentences(tokenizer, 7)
    assert sentences == made_up_sentences(tokenizer, 7)
    assert len(set(sentences)) == 7
    marian = to_marian(ours)
    agreement = compare(ours, tokenizer, marian, sentences, SEARCHES)
    assert agreement.sentences == 7
    assert agreement.largest_difference < 1e-4
    assert (agreement.equal["greedy"], agreement.chrf["greedy"]) == (7, 100.0)
    assert set(agreement.equal) == {"greedy", "beam"}
    assert (agreement.exact, agreement.reference_chrf) == (("greedy",), {})
    agreement.check()
    scored = compare(ours, tokenizer, marian, sentences, SEARCHES, references=TEXT * 7, exact=("beam",))
    mine = [best.text for best, *_ in translate(ours, tokenizer, sentences, num_beams=1, max_new_tokens=100)]
    expected = CHRF().corpus_score(mine, [TEXT * 7]).score
    assert scored.reference_chrf["greedy"] == (expected, expected)
    assert scored.exact == ("greedy", "beam")


def test_another_model_does_not(random_model, tokenizer):
    ours, other = random_model(vocab_size=265), random_model(vocab_size=265)
    sentences = made_up_sentences(tokenizer, 7)
    agreement = compare(ours, tokenizer, other, sentences, {})
    assert agreement.equal["greedy"] < 7
    assert agreement.chrf["greedy"] < 100
    with pytest.raises(UserError, match="log-probabilities differ by up to"):
        agreement.check()


def test_chrf_is_of_their_text_against_ours_and_of_both_against_references(random_model, tokenizer, monkeypatch):
    ours, other, references = random_model(vocab_size=265), random_model(vocab_size=265), ["one two four"]
    mine, theirs = ["one two three"], ["one two"]

    def write(model, *given, **settings):
        return [[SimpleNamespace(text=text)] for text in (mine if model is ours else theirs)]

    monkeypatch.setattr(verification, "translate", write)
    agreement = compare(ours, tokenizer, other, ["six"], {}, references=references)
    assert agreement.chrf["greedy"] == CHRF().corpus_score(theirs, [mine]).score
    expected = tuple(CHRF().corpus_score(texts, [references]).score for texts in (mine, theirs))
    assert agreement.reference_chrf["greedy"] == expected


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_largest_difference_is_that_of_all_batches(wrong, random_model, tokenizer, monkeypatch):
    monkeypatch.setattr(verification, "BATCH", 1)
    ours, batches = random_model(vocab_size=265), iter(range(2))
    theirs = copy.copy(ours)
    theirs.log_probabilities = lambda *given: log_probabilities(ours, *given) + (next(batches) == wrong)
    agreement = compare(ours, tokenizer, theirs, ["one two", "six"], {})
    assert agreement.largest_difference == pytest.approx(1)


def test_what_stands_behind_the_end_of_a_sentence_does_not_count(random_model, tokenizer):
    ours = random_model(vocab_size=265)
    # The second sentence ends before the first: behind its </s> stands padding.
    ours.generate = lambda *given, **settings: torch.tensor([[264, 5, 6, 7, 0], [264, 8, 0, 264, 264]])

    def as_ctranslate2(input_ids, mask, labels):
        is_behind = (labels == 0).cumsum(1) - (labels == 0).int() > 0
        return log_probabilities(ours, input_ids, mask, labels).masked_fill(is_behind, 0)

    theirs = copy.copy(ours)
    theirs.log_probabilities = as_ctranslate2
    agreement = compare(ours, tokenizer, theirs, ["one two", "six five"], {})
    assert agreement.largest_difference < 1e-4
    theirs.log_probabilities = lambda *given: as_ctranslate2(*given) + 1
    wrong = compare(ours, tokenizer, theirs, ["one two", "six five"], {})
    assert wrong.largest_difference == pytest.approx(1)


@pytest.mark.parametrize("positions", [12, 40])
def test_a_short_table_of_positions_limits_what_is_compared(positions, random_model, tokenizer):
    ours = random_model(vocab_size=265, position_embedding_type="learned", max_position_embeddings=positions)
    sentences = ["one two", "six " * 30]
    agreement = compare(ours, tokenizer, ours, sentences, {})
    assert (agreement.equal["greedy"], agreement.largest_difference) == (2, 0)


def test_what_is_longer_than_the_other_models_table_of_positions_is_cut(random_model, tokenizer):
    ours = random_model(vocab_size=265, max_position_embeddings=12)  # sinusoids: only Marian has a table
    agreement = compare(ours, tokenizer, to_marian(ours), ["one two", "six " * 30], {})
    assert agreement.equal["greedy"] == 2
    assert agreement.largest_difference < 1e-4


@pytest.mark.parametrize("asked", [{"num_beams": 4, "num_return_sequences": 2}, {"return_dict_in_generate": True}])
def test_models_whose_settings_ask_for_more_than_a_translation_are_compared(asked, random_model, tokenizer):
    ours = random_model(vocab_size=265)
    ours.generation_config.update(**asked)
    agreement = compare(ours, tokenizer, to_marian(ours), ["one two", "six"], SEARCHES)
    assert (agreement.sentences, agreement.equal["greedy"]) == (2, 2)


def test_equal_numbers_are_not_enough_where_translations_differ():
    with pytest.raises(UserError, match="gives 98 of 100 translations of search 'greedy' as ours does, but"):
        Agreement(100, 1e-6, {"greedy": 98}, {"greedy": 99.0}).check()
    both = {"greedy": 99, "beam": 3}, {"greedy": 99.0, "beam": 9.0}
    Agreement(100, 1e-6, *both).check()
    with pytest.raises(UserError, match="gives 3 of 100 translations of search 'beam' as ours does"):
        Agreement(100, 1e-6, *both, exact=("greedy", "beam")).check()


def test_it_says_what_was_found():
    agreement = Agreement(100, 3e-6, {"greedy": 100, "beam 4": 97}, {"greedy": 100.0, "beam 4": 98.76})
    assert str(agreement) == (
        "log-probabilities within 3e-06; greedy: 100 of 100 translations equal (chrF 100.0); "
        "beam 4: 97 of 100 translations equal (chrF 98.8)"
    )
    scored = Agreement(100, 3e-6, {"greedy": 91}, {"greedy": 98.0}, {"greedy": (55.123, 55.061)})
    assert str(scored).endswith("equal (chrF 98.0, against the references 55.06 where ours has 55.12)")


def test_log_probabilities_leave_out_pad(random_model, batch):
    ours = random_model()
    inputs = batch(ours.config)
    labels = inputs["labels"].clamp(min=0)
    found = log_probabilities(ours, inputs["input_ids"], inputs["attention_mask"], labels)
    start = torch.cat([torch.full((4, 1), 22), labels[:, :-1]], 1)
    logits = ours(inputs["input_ids"], attention_mask=inputs["attention_mask"], decoder_input_ids=start).logits
    expected = logits[..., :22].log_softmax(-1).gather(2, labels[..., None])[..., 0]
    torch.testing.assert_close(found, expected)
