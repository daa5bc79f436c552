import numpy as np
import pytest
import torch
from datasets import Dataset
from opus_model import save_vocabulary
from transformers import AutoTokenizer

from vaswani.errors import UserError
from vaswani.shortlists import sampling
from vaswani.shortlists.sampling import choose, sample


def rows(*pairs) -> Dataset:
    sources, targets = zip(*pairs, strict=True)
    return Dataset.from_dict({"source": sources, "target": targets})


PAIRS = [("one", "two two"), ("", "three"), ("four", " "), (None, "five"), ("six one", "two")]


@pytest.mark.parametrize("block", [1, 2, 4096])
def test_pairs_are_encoded_and_target_types_counted(tokenizer, block, monkeypatch):
    monkeypatch.setattr(sampling, "BLOCK", block)
    steps = []
    pairs, counts = sample(tokenizer, rows(*PAIRS), on_pairs=steps.append)
    texts = ("one", "six one"), ("two two", "two")
    ids = [[tokenizer(text).input_ids for text in side] for side in texts]
    assert pairs.source_ids.tolist() == [*ids[0][0], *ids[0][1]]
    assert pairs.target_ids.tolist() == [*ids[1][0], *ids[1][1]]
    assert [pairs.source_lengths.tolist(), pairs.target_lengths.tolist()] == [list(map(len, side)) for side in ids]
    expected = torch.zeros(265, dtype=torch.int64).index_add_(
        0, pairs.target_ids, torch.ones_like(pairs.target_ids).long()
    )
    assert torch.equal(counts, expected)
    assert sum(steps) == 5


def test_targets_are_encoded_as_such(tmp_path):
    """OPUS-MT's tokenizer has another SentencePiece model for them."""
    save_vocabulary(tmp_path)
    tokenizer, words = AutoTokenizer.from_pretrained(tmp_path), "zwei klein Hunde ."
    pairs, _ = sample(tokenizer, rows((words, words)))
    assert pairs.source_ids.tolist() == tokenizer(words).input_ids
    assert pairs.target_ids.tolist() == tokenizer(text_target=words).input_ids != tokenizer(words).input_ids


def test_a_pair_is_kept_where_it_holds_a_type_of_which_there_is_not_enough():
    sources = [np.array(ids) for ids in ([1, 1, 0], [1, 2, 0], [1, 0], [2, 0], [2, 1, 0], [3, 1, 0])]
    kept = np.zeros(4, dtype=np.int64)
    assert choose(sources, sources, kept, 2) == [0, 1, 3, 5]
    assert kept.tolist() == [4, 3, 2, 1]


@pytest.mark.parametrize(("lengths", "chosen"), [((256, 256), [0]), ((257, 1), []), ((1, 257), [])])
def test_a_sentence_may_have_256_tokens(lengths, chosen):
    source, target = (np.zeros(length, dtype=np.int64) for length in lengths)
    assert choose([source], [target], np.zeros(1, dtype=np.int64), 2) == chosen


def test_very_long_sentences_are_left_out_on_either_side(tokenizer):
    long = "six " * 256
    pairs, counts = sample(tokenizer, rows((long, "one"), ("one", long), ("one", "two")))
    assert pairs.source_lengths.tolist() == [len(tokenizer("one").input_ids)]
    assert counts[tokenizer("six").input_ids[0]] >= 256  # but how frequent types are is known


def test_a_text_without_a_pair_is_refused(tokenizer):
    with pytest.raises(UserError, match="holds no pair to learn from: both sides must have 1 to 256 tokens"):
        sample(tokenizer, rows(("", "one"), ("one", " ")))
    with pytest.raises(UserError, match="holds no pair to learn from"):
        sample(tokenizer, rows(("six " * 300, "one")))
