"""What all models have in common."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from vaswani.models.translator_vaswani import shift_tokens_right


def test_targets_are_shifted_right_behind_the_start():
    labels = torch.tensor([[3, 4, 0], [5, 0, -100]])
    assert shift_tokens_right(labels, pad_token_id=9, decoder_start_token_id=8).tolist() == [[8, 3, 4], [8, 5, 0]]
    longer = torch.tensor([[0, -100, -100]])
    assert shift_tokens_right(longer, pad_token_id=9, decoder_start_token_id=8).tolist() == [[8, 0, 9]]
    with pytest.raises(ValueError, match="pad_token_id=None in the config"):
        shift_tokens_right(labels, None, 8)


@pytest.mark.parametrize(("field", "value"), [("dropout", 1.5), ("attention_dropout", -0.1)])
def test_a_field_is_checked_that_is_given_where_a_model_is_loaded(field, value, random_model, tmp_path):
    random_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"^{field}={value} must be in \[0, 1\)$"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **{field: value})
