"""The flags of a table, and of run.py for all of its rows."""

import pytest

from training.recipe import parse_settings
from training.tables.flags import check_run_flags, flags_of_a_length
from vaswani.errors import UserError


def test_flags_of_run_are_taken_and_others_refused():
    check_run_flags(["--seed=1", "--max-tokens-per-batch", "5"], ["jobs"], {})
    with pytest.raises(UserError, match="unknown flag '--job': the nearest known one is 'jobs'"):
        check_run_flags(["--job=1"], ["jobs"], {})
    with pytest.raises(UserError, match="--seed is no flag of the whole table: each has its own"):
        check_run_flags(["--seed=1"], ["jobs"], {"seed": "each has its own"})


def test_a_short_run_is_logged_and_saved_often_enough():
    recipe = parse_settings(["training/recipes/base-en-de.toml"])
    assert flags_of_a_length(100, recipe, []) == ["--max_steps=100", "--logging_steps=5", "--save_steps=5"]
    assert flags_of_a_length(3, recipe, ["save_steps"]) == ["--max_steps=3", "--logging_steps=1"]
    long = flags_of_a_length(100_000, recipe, [])
    assert long == ["--max_steps=100000", "--logging_steps=100", "--save_steps=1500"]
