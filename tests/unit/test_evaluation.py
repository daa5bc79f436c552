import pytest
from datasets import Dataset

from training.data import encode
from training.evaluation import evaluate, score, translate
from training.settings import TrainingSettings
from vaswani.tokenization import train_tokenizer


SENTENCES = ["one two", "", "three", "one two three four five six", None, "two"]


@pytest.fixture
def tokenizer():
    return train_tokenizer(["one two three four five six"], 265)


def test_scores_are_sacrebleus_and_perfect_for_the_reference_itself():
    references = ["The cat sat on the mat.", "A dog barked at the old man."]
    row = score(references, references)
    assert (row["sacrebleu"], row["chrf"], row["exact_match"], row["sentences"]) == (100.0, 100.0, 100.0, 2)
    assert score([text.lower() for text in references], references)["sacrebleu_lowercased"] == 100.0
    assert score([text.lower() for text in references], references)["sacrebleu"] < 100
    with pytest.raises(ValueError, match="1 hypotheses but 2 references"):
        score(["x"], references)


def test_neither_order_nor_batch_size_changes_a_translation(random_model, tiny_config, tokenizer):
    model = random_model(tiny_config(vocab_size=265))
    sentences = [sentence or "" for sentence in SENTENCES]
    one_by_one = translate(model, tokenizer, sentences, max_tokens=1, max_new_tokens=9)
    together = translate(model, tokenizer, sentences, max_tokens=1000, max_new_tokens=9)
    turned = translate(model, tokenizer, sentences[::-1], max_tokens=20, max_new_tokens=9)[::-1]
    assert one_by_one == together == turned


def test_an_evaluation_takes_missing_sentences_and_leaves_the_model_as_it_was(random_model, tiny_config, tokenizer):
    model = random_model(tiny_config(vocab_size=265)).train()
    text = Dataset.from_dict({"source": SENTENCES, "target": SENTENCES})
    encoded, _ = encode(text, tokenizer, TrainingSettings(), "test")
    row, translations = evaluate(model, tokenizer, text, encoded, max_tokens=100)
    assert model.training
    assert (row["sentences"], len(translations)) == (6, 6)
    assert row["nll"] > 0
