"""The flags of a table, and of run.py for all of its rows."""

import pytest

from training.recipe import parse_settings
from training.tables.flags import check_run_flags, choose, flags_of_a_length
from vaswani.errors import UserError


KNOWN = {"self-attention": 1, "convolution": 2, "lstm": 3}


def test_flags_of_run_are_taken_and_others_refused():
    check_run_flags(["--seed=1", "--max-tokens-per-batch", "5"], ["jobs"], {})
    with pytest.raises(UserError, match="unknown flag '--job': the nearest known one is 'jobs'"):
        check_run_flags(["--job=1"], ["jobs"], {})
    with pytest.raises(UserError, match="--seed is no flag of the whole table: each has its own"):
        check_run_flags(["--seed=1"], ["jobs"], {"seed": "each has its own"})


def test_what_a_flag_names_comes_in_the_order_of_the_table():
    assert choose("layers", " lstm,self-attention, lstm,", KNOWN) == [1, 3]
    assert choose("layers", "all", KNOWN) == [1, 2, 3]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("lstm,convolutions", "unknown layer 'convolutions': the nearest known one is 'convolution'; known are self-"),
        ("Lstm", "unknown layer 'Lstm': the nearest known one is 'lstm'"),
        (" , ", "layers must name at least one of self-attention, convolution, lstm, or be 'all'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_known_one(names, message):
    with pytest.raises(UserError, match=message):
        choose("layers", names, KNOWN)


def test_a_short_run_is_logged_and_saved_often_enough():
    recipe = parse_settings(["training/recipes/base-en-de.toml"])
    assert flags_of_a_length(100, recipe, []) == ["--max_steps=100", "--logging_steps=5", "--save_steps=5"]
    assert flags_of_a_length(3, recipe, ["save_steps"]) == ["--max_steps=3", "--logging_steps=1"]
    long = flags_of_a_length(100_000, recipe, [])
    assert long == ["--max_steps=100000", "--logging_steps=100", "--save_steps=1500"]
