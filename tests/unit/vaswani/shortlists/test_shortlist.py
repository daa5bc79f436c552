from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from safetensors.torch import save_file

from vaswani.errors import UserError
from vaswani.shortlists.alignment import align
from vaswani.shortlists.sampling import sample
from vaswani.shortlists.shortlist import FILE, Shortlist, fingerprint
from vaswani.tokenization import train_tokenizer


@pytest.fixture
def shortlist():
    """Of 30 types, each of which has the next two as candidates; the last has one, the first none."""
    candidates = torch.arange(30)[:, None] + torch.tensor([1, 2])
    candidates[0], candidates[29] = -1, torch.tensor([0, -1])
    return Shortlist(candidates.int().clamp(max=29), torch.tensor([0, 7, 20, 21, 22, 23, 24, 25]).int(), 2, "")


def test_a_batch_may_be_written_with_the_union_of_its_tokens_lists(shortlist):
    candidates, copies, frequent = {11, 12, 16, 17, 19, 20}, {10, 15, 18, 0}, {0, 7}
    wanted = candidates | copies | frequent  # 11 of them: the next frequent make them 16
    ids = shortlist.allowed([[10, 0], [15, 10, 0], [18, 0]])
    assert ids.tolist() == sorted(wanted | {21, 22, 23, 24, 25})
    assert ids.dtype == torch.int64


@pytest.mark.parametrize(("tokens", "count"), [([10, 0], 8), ([10, 14, 0], 8), ([10, 13, 16, 0], 16)])
def test_their_number_is_a_multiple_of_eight_while_there_are_types(tokens, count, shortlist):
    ids = shortlist.allowed([tokens])
    assert len(ids) == len(ids.unique()) == count
    everything = [list(range(26))]
    assert len(shortlist.allowed(everything)) == 28  # all that there is


def test_no_sentence_takes_from_another(shortlist):
    alone = [set(shortlist.allowed([ids]).tolist()) - set(range(20, 26)) for ids in ([10, 0], [3, 0])]
    assert alone[0] | alone[1] <= set(shortlist.allowed([[10, 0], [3, 0]]).tolist())


def made_of(tokenizer, per_source=2, frequent=3) -> Shortlist:
    text = Dataset.from_dict({"source": ["one two", "one", "three two"], "target": ["four five", "four", "six five"]})
    pairs, counts = sample(tokenizer, text)
    return Shortlist.build(tokenizer, align(pairs, len(tokenizer)), counts, per_source, frequent)


def test_it_is_made_of_a_text_and_survives_a_file(tokenizer, tmp_path):
    made = made_of(tokenizer, per_source=6)
    assert (made.candidates.shape, made.frequent) == ((265, 6), 3)
    hr, iv, r, ix = tokenizer.convert_tokens_to_ids(["hr", "iv", "r", "ix"])
    assert made.by_frequency[0] == tokenizer.eos_token_id
    assert ix in made.candidates[hr]  # of "six" and "three"
    assert (made.candidates[iv] == -1).all()  # of "five", which stands in no source
    assert {tokenizer.eos_token_id, hr, ix} <= set(made.allowed([tokenizer("three").input_ids]).tolist())
    assert r in made.by_frequency
    assert len(made.by_frequency) == len(made.by_frequency.unique())
    assert hr not in made.by_frequency
    path = made.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [path.name] == [FILE]
    loaded = Shortlist.load(str(tmp_path), tokenizer)
    assert torch.equal(loaded.candidates, made.candidates)
    assert torch.equal(loaded.by_frequency, made.by_frequency)
    assert (loaded.frequent, loaded.vocabulary) == (3, fingerprint(tokenizer))


def test_the_end_of_a_sentence_is_allowed_even_with_one_frequent_type(tokenizer):
    made = made_of(tokenizer, per_source=1, frequent=1)
    assert tokenizer.eos_token_id in made.allowed([[5]])


def sides_of(pairs):
    sources, targets = pairs.source_ids.split(pairs.source_lengths.tolist()), pairs.target_ids
    return zip(sources, targets.split(pairs.target_lengths.tolist()), strict=True)


def test_coverage_counts_the_target_tokens_that_may_be_written(tokenizer):
    text = Dataset.from_dict({"source": ["one", "two"], "target": ["four", "five five"]})
    pairs, counts = sample(tokenizer, text)
    made = Shortlist.build(tokenizer, align(pairs, 265), counts, 9, 1)
    share, types = made.coverage(pairs)
    assert share == 1
    assert types < 265
    nothing = Shortlist(torch.full((265, 1), -1), made.by_frequency[:1], 1, "")
    copies = sum(int(torch.isin(target, source).sum()) for source, target in sides_of(pairs))  # </s> among them
    assert copies / len(pairs.target_ids) == nothing.coverage(pairs)[0] < 0.5
    counts = [len(set(source.tolist())) for source, _ in sides_of(pairs)]  # </s> among them
    assert nothing.coverage(pairs)[1] == sum(counts) / 2


def refusal(folder, tokenizer) -> str:
    with pytest.raises(UserError) as refused:
        Shortlist.load(str(folder), tokenizer)
    return str(refused.value)


def test_a_folder_without_one_is_refused_with_the_command_that_makes_it(tokenizer, tmp_path):
    command = f"vaswani shortlist --model {tmp_path} --source FILE --target FILE"
    assert refusal(tmp_path, tokenizer) == (
        f"model={str(tmp_path)!r} has no shortlist.safetensors, which --shortlist needs: {command} makes it"
    )


@pytest.mark.parametrize("words", ["one two three four five six", "seven eight nine"], ids=["size", "equal size"])
def test_one_for_another_vocabulary_is_refused(words, tokenizer, tmp_path):
    made_of(tokenizer).save(tmp_path)
    other = train_tokenizer([words], 264 if "one" in words else 265)
    assert f"made for another vocabulary, of 265 types, than the tokenizer's of {len(other)}" in refusal(
        tmp_path, other
    )


def test_a_vocabulary_of_the_same_words_in_another_order_is_another():
    first, same, other = (
        SimpleNamespace(get_vocab=lambda vocabulary=vocabulary: vocabulary)
        for vocabulary in ({"a": 0, "b": 1}, {"b": 1, "a": 0}, {"a": 1, "b": 0})
    )
    assert fingerprint(first) == fingerprint(same) != fingerprint(other)


def test_damaged_files_are_refused(tokenizer, tmp_path):
    path = made_of(tokenizer).save(tmp_path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], b"x" * 1000):
        path.write_bytes(damaged)
        assert " is damaged, make it again by vaswani shortlist --model " in refusal(tmp_path, tokenizer)
    good = {"candidates": torch.zeros(265, 2).int(), "by_frequency": torch.zeros(3).int()}
    about = {"format": "vaswani shortlist 1", "frequent": "3", "vocabulary": fingerprint(tokenizer)}
    for tensors, metadata in (
        ({"candidates": good["candidates"]}, about),
        (good, None),
        (good, about | {"frequent": "many"}),
        (good | {"by_frequency": torch.zeros(3)}, about),
        (good | {"by_frequency": torch.tensor([265])}, about),
        (good | {"candidates": torch.zeros(265).int()}, about),
    ):
        save_file(tensors, path, metadata)
        assert " is damaged, " in refusal(tmp_path, tokenizer)
    save_file(good, path, about | {"format": "vaswani shortlist 9"})
    assert "has the format 'vaswani shortlist 9', but must have 'vaswani shortlist 1'" in refusal(tmp_path, tokenizer)
    save_file(good, path, about)
    Shortlist.load(str(tmp_path), tokenizer)
