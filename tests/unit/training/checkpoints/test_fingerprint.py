from datasets import Dataset, DatasetDict
from flat_settings import make_settings

from training.checkpoints.fingerprint import FREE, differences, run_fingerprint
from training.data.preparation import FEATURES
from training.recipe import NAMES
from vaswani.tokenization import train_tokenizer


def test_differences_name_subject_setting_and_both_values():
    there = {"recipe": {"seed": 1, "adam_beta1": 0.9}, "data": {"train": "5 pairs, ab"}}
    here = {"recipe": {"seed": 2, "adam_beta1": 0.9}, "data": {"train": "5 pairs, cd", "test": "1 pairs, ef"}}
    assert differences(there, here) == [
        "recipe's seed is 1 there, 2 here",
        "data's test is None there, '1 pairs, ef' here",
        "data's train is '5 pairs, ab' there, '5 pairs, cd' here",
    ]
    assert differences(here, here) == []


def test_another_base_model_is_a_difference_and_so_is_none():
    old, one, none = {"recipe": {}}, {"recipe": {}, "base_model": {"sha256": "ab"}}, {"recipe": {}, "base_model": {}}
    assert differences(one, {"recipe": {}, "base_model": {"sha256": "cd"}}) == [
        "base_model's sha256 is 'ab' there, 'cd' here"
    ]
    assert differences(one, none) == ["base_model's sha256 is 'ab' there, None here"]
    assert differences(none, one) == differences(old, one) == ["base_model's sha256 is None there, 'ab' here"]
    assert differences(old, none) == []  # saved before there were base models


def test_a_run_from_before_attention_could_be_restricted_is_resumed(tiny_config):
    free, restricted = ({"model": tiny_config(attention_restriction=r).to_diff_dict()} for r in (None, 8))
    before = {"model": {name: value for name, value in free["model"].items() if name != "attention_restriction"}}
    assert differences(before, free) == []
    assert differences(before, restricted) == ["model's attention_restriction is None there, 8 here"]


def test_a_run_from_before_a_setting_was_free_is_resumed():
    assert differences({"recipe": {"vocab_size": 37000, "seed": 1}}, {"recipe": {"seed": 1}}) == []
    assert differences({"model": {"vocab_size": 5}}, {"model": {}}) == ["model's vocab_size is 5 there, None here"]


def test_another_tokenizer_is_a_difference(tiny_config):
    texts = ("ab ab abc", "ab ab abc", "bc bc abc")
    one, same, other = (
        run_fingerprint(make_settings(), tiny_config(), train_tokenizer([text], 259), DatasetDict()) for text in texts
    )
    assert differences(one, same) == []
    [difference] = differences(one, other)
    assert difference.startswith("tokenizer's sha256 is ")


def test_other_text_of_any_split_is_a_difference(tiny_config):
    tokenizer = train_tokenizer(["ab ab abc"], 259)

    def of(**ids: int):
        rows = {
            split: Dataset.from_dict(
                {"input_ids": [[number]], "labels": [[1]], "source_length": [1], "target_length": [1]},
                features=FEATURES,
            )
            for split, number in ids.items()
        }
        return run_fingerprint(make_settings(), tiny_config(), tokenizer, DatasetDict(rows))

    assert differences(of(train=1, validation=2), of(train=1, validation=2)) == []
    for changed, split in ((of(train=3, validation=2), "train"), (of(train=1, validation=3), "validation")):
        [difference] = differences(of(train=1, validation=2), changed)
        assert difference.startswith(f"data's {split} is '1 pairs, ")


def test_everything_that_changes_an_update_is_fixed():
    assert set(NAMES) >= FREE
    assert set(NAMES) - FREE == {
        "source_lang", "target_lang", "max_train_samples", "max_eval_samples", "max_source_length",
        "max_target_length", "max_length_ratio", "bpe_dropout", "treebank_parts", "treebank_made",
        "max_tokens_per_batch", "length_groups", "curriculum_epochs", "curriculum_length", "warmup_steps",
        "learning_rate_factor", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
        "label_smoothing", "weight_decay", "rdrop_alpha", "mixed_precision", "attn_implementation", "seed",
    }  # fmt: skip
