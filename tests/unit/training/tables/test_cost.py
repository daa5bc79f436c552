import pytest

from training.tables.cost import count_parameters, flops_per_target_token, papers_training_flops
from vaswani import VaswaniConfig


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


def test_table_2_comes_out_of_the_papers_formula():
    assert f"{papers_training_flops(12):.1e}" == "3.3e+18"
    assert f"{papers_training_flops(3.5 * 24):.1e}" == "2.3e+19"


def test_counting_leaves_the_config_alone():
    config = VaswaniConfig(vocab_size=99)
    assert count_parameters(config, 100) - count_parameters(config) == config.d_model
    assert config.vocab_size == 99
