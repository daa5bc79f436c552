"""The command that fills Table 2."""

import pytest

from training import table2
from vaswani.errors import UserError


GIVEN = ["--dataset_name", "grammar", "--source_lang", "en", "--target_lang", "de"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--systems", "recurrent,tranformer"], "unknown system 'tranformer': the nearest known one is 'transformer'"),
        (["--systems", ","], "systems must name at least one system"),
        (["--flops", "1e9"], "does not suffice for one update of 'recurrent'"),
        (["--target_tokens", "24999"], "target_tokens=24999 does not suffice for one update"),
        (["--flops", "0"], "flops=0 must be above 0"),
        (["--minutes", "-1"], "minutes=-1 must be above 0"),
        (["--flops", "1e18", "--minutes", "5"], "not allowed with argument"),
        (["--search_share", "1.5"], r"search_share=1.5 must be at most 1"),
        (["--seeds", "one"], "seeds='one' must be numbers with commas between"),
        (["--learning_rate_factors", ","], "learning_rate_factors=',' must hold at least one number"),
        (["--seed", "1"], "--seed is no flag of the whole table: --seeds has them all"),
        (["--config_name", "base-en-de"], "--config_name is no flag of the whole table: each system has its own"),
        (["--max_steps=5"], "--max_steps is no flag of the whole table: it follows from --flops"),
        (["--flop", "1e18"], "unknown flag '--flop': the nearest known one is 'flops'"),
        (["--jobs", "0"], "jobs=0 must be at least 1"),
        (["--scale", "0.3"], "scale=0.3 must be a multiple"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(flags, message, tmp_path):
    with pytest.raises(UserError, match=message):
        table2.main(["--systems", "recurrent", "--output_dir", str(tmp_path / "out"), *GIVEN, *flags])
    assert not (tmp_path / "out").exists()


def test_a_list_needs_no_training_and_fits_a_terminal(capsys):
    table2.main(["--list", "--flops", "1e18"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [
        "recurrent",
        "recurrent-attention",
        "convolutional",
        "transformer",
    ]
    assert all(line.endswith("1.0e+18") for line in lines[2:])
    assert max(map(len, lines)) <= 120


def test_numbers_are_read_once_each_in_their_order():
    options, flags = table2.parse(["--seeds", "3, 1,3", "--learning_rate_factors=0.5,1", "--warmup_steps=3"])
    assert (options.seeds, options.learning_rate_factors, flags) == ([3, 1], [0.5, 1.0], ["--warmup_steps=3"])
