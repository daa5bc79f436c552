import dataclasses

from training.identity import FREE, differences
from training.settings import TrainingSettings


def test_differences_name_subject_setting_and_both_values():
    there = {"recipe": {"seed": 1, "adam_beta1": 0.9}, "data": {"train": "5 pairs, ab"}}
    here = {"recipe": {"seed": 2, "adam_beta1": 0.9}, "data": {"train": "5 pairs, cd", "test": "1 pairs, ef"}}
    assert differences(there, here) == [
        "recipe's seed is 1 there, 2 here",
        "data's test is None there, '1 pairs, ef' here",
        "data's train is '5 pairs, ab' there, '5 pairs, cd' here",
    ]
    assert differences(here, here) == []


def test_what_changes_an_update_is_not_free():
    names = {setting.name for setting in dataclasses.fields(TrainingSettings)}
    assert names >= FREE
    assert names - FREE >= {
        "seed", "max_tokens_per_batch", "length_groups", "warmup_steps", "learning_rate_factor", "adam_beta1",
        "label_smoothing", "mixed_precision", "attn_implementation", "max_source_length", "source_lang",
    }  # fmt: skip
