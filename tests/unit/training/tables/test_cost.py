import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from training.tables.cost import count_parameters, flops_per_target_token, papers_training_flops
from training.tables.rows import ROWS
from training.trainer.model import load_config, on_paper
from vaswani import VaswaniConfig
from vaswani.errors import UserError


# At 40,960 types, with biases in attention: shared/reference/paper-and-peers.md 1.7 works them out by hand.
COUNTS = {
    "base": 65_110_016,
    "B-k16": 58_018_304,
    "B-k32": 60_382_208,
    "C-N2": 35_684_352,
    "C-N4": 50_397_184,
    "C-N8": 79_822_848,
    "C-d256": 27_848_704,
    "C-d1024": 167_944_192,
    "C-ff1024": 52_514_816,
    "C-ff4096": 90_300_416,
}
BIG = 218_300_416


def arithmetic(config: VaswaniConfig, length: int) -> int:
    """Count products by hand, attention's own too: 2 operations a weight and token forward, twice that backward."""
    d, heads = config.d_model, config.encoder_attention_heads
    key, value = config.head_dim, config.v_head_dim or config.head_dim
    attention = 2 * d * heads * (key + value)
    weights = config.vocab_size * d
    weights += config.encoder_layers * (attention + 2 * d * config.encoder_ffn_dim)
    weights += config.decoder_layers * (2 * attention + 2 * d * config.decoder_ffn_dim)
    attentions = config.encoder_layers + 2 * config.decoder_layers
    return 6 * weights + 6 * attentions * length * heads * (key + value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"head_dim": 16, "v_head_dim": 64},
        {"d_model": 256, "encoder_layers": 2, "decoder_layers": 5, "decoder_ffn_dim": 64, "vocab_size": 999},
    ],
)
def test_operations_are_those_of_the_arithmetic(fields):
    config = VaswaniConfig(**fields)
    for length in (7, 28):
        assert flops_per_target_token(config, length) == arithmetic(config, length)


def test_restricted_attention_is_not_counted_as_if_it_saw_everything():
    with pytest.raises(UserError, match="attention_restriction=8 must be none here: the operations of restricted"):
        flops_per_target_token(VaswaniConfig(vocab_size=99, attention_restriction=8))


def test_table_2_comes_out_of_the_papers_formula():
    assert f"{papers_training_flops(12):.1e}" == "3.3e+18"
    assert f"{papers_training_flops(3.5 * 24):.1e}" == "2.3e+19"


def test_counting_leaves_the_config_alone():
    config = VaswaniConfig(vocab_size=99)
    assert count_parameters(config, 100) - count_parameters(config) == config.d_model
    assert config.vocab_size == 99


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_parameters_are_the_papers(name, count):
    assert count_parameters(ROWS[name].config, 40_960) == count
    assert round(count / 1e6) == ROWS[name].parameters


@pytest.mark.parametrize(("name", "count"), [("base", 63_045_632), ("big", 214_171_648)])
def test_parameters_without_biases_in_attention_at_the_vocabulary_of_the_text(name, count):
    config = ROWS[name].config
    config.attention_bias = False
    assert count_parameters(config, 37_000) == count


def test_the_printed_count_of_big_is_one_that_no_vocabulary_explains():
    assert count_parameters(ROWS["big"].config, 40_960) == BIG
    assert (round(BIG / 1e6), ROWS["big"].parameters) == (218, 213)
    fitting = [v for v in range(30_000, 42_000, 100) if round((BIG - 1024 * (40_960 - v)) / 1e6) == 213]
    base = [round((COUNTS["base"] - 512 * (40_960 - v)) / 1e6) for v in fitting]
    assert fitting
    assert 65 not in base


def test_every_printed_count_is_tested():
    assert {name for name, row in ROWS.items() if row.parameters} == {*COUNTS, "big"}


@pytest.mark.parametrize(("name", "tolerance"), [("demo", 0), ("convolutional-en-de", 0), ("recurrent-en-de", 1e-3)])
def test_backward_takes_twice_the_operations_of_forward(name, tolerance):
    config = load_config(name)
    model, ids = on_paper(config), torch.zeros(1, 28, dtype=torch.long, device="meta")
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        model(ids, decoder_input_ids=ids, use_cache=False).logits.sum().backward()
    assert 28 * flops_per_target_token(config) == pytest.approx(counter.get_total_flops(), rel=tolerance)
