import argparse

import pytest

from vaswani.cli.shared import flags
from vaswani.cli.shared.flags import (
    add_batch_flags,
    add_decoding_flags,
    add_model_flags,
    alpha,
    at_least_one,
    decoding,
)
from vaswani.errors import UserError
from vaswani.models import decoding_vaswani


@pytest.fixture
def parse():
    """Return a function that parses a command line of these flags."""
    parser = argparse.ArgumentParser()
    add_decoding_flags(parser)
    add_batch_flags(parser)
    add_model_flags(parser)
    return lambda *arguments: parser.parse_args(arguments)


def test_whole_numbers_begin_at_one():
    assert [at_least_one(text) for text in ("1", "07", "4096")] == [1, 7, 4096]


@pytest.mark.parametrize("text", ["0", "00", "-1", "+1", "1.0", "1e3", "", " 1", "\u00b2", "\u0663"])
def test_other_counts_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be a whole number of at least 1$"):
        at_least_one(text)


def test_alpha_has_any_sign():
    assert [alpha(text) for text in ("0.6", "-1", "0", "1e-3", "10")] == [0.6, -1.0, 0.0, 0.001, 10.0]
    assert flags.MOST_ALPHA == decoding_vaswani.MOST_ALPHA


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "10.1", "-5000", "much", ""])
def test_another_alpha_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be a number from -10 to 10, such as 0\.6$"):
        alpha(text)


def test_the_shortest_translation_is_no_longer_than_the_longest(parse):
    assert decoding(parse("--min_new_tokens", "3", "--max_new_tokens", "3")).keys() == {
        "min_new_tokens",
        "max_new_tokens",
    }
    with pytest.raises(UserError, match="min_new_tokens=4 must be at most max_new_tokens=3"):
        decoding(parse("--min_new_tokens", "4", "--max_new_tokens", "3"))


def test_generate_is_given_only_the_flags_that_were_given(parse):
    assert decoding(parse()) == {}
    assert decoding(parse("--max_batch_tokens", "9", "--device", "cpu")) == {}
    # An alpha of 0 is given, though it is false.
    given = parse("--num_beams", "3", "--length_penalty_alpha", "0", "--max_new_tokens", "7")
    assert decoding(given) == {"num_beams": 3, "length_penalty_alpha": 0.0, "max_new_tokens": 7}


def test_defaults_are_those_that_help_names(parse):
    options = parse()
    assert (options.max_batch_tokens, options.dtype, options.device, options.tokenizer) == (4096, "auto", None, None)
