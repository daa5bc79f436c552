import argparse

import pytest

from training.recipe import parse_settings
from training.tables.flags import above_zero, choose, flags_of_a_length, numbers, share
from vaswani.errors import UserError


KNOWN = {"self-attention": 1, "convolution": 2, "lstm": 3}


def test_numbers_are_read_once_each_in_their_order():
    assert numbers(int)("3, 1,3") == [3, 1]
    assert numbers(share)("0.5,1") == [0.5, 1.0]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (numbers(int), "1,,2", "'1,,2' must be numbers with commas between"),
        (numbers(int), "", "'' must be numbers with commas between"),
        (numbers(int, least=2), "3,1", "'3,1' must be numbers of at least 2"),
        (numbers(share), "0.5,1.5", "'1.5' must be above 0 and at most 1"),
        (share, "0", "'0' must be above 0 and at most 1"),
        (above_zero, "0", "'0' must be a number above 0"),
        (above_zero, "inf", "'inf' must be a number above 0"),
        (above_zero, "nan", "'nan' must be a number above 0"),
    ],
)
def test_other_values_are_refused(kind, text, message):
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        kind(text)
    assert str(refused.value) == message


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
