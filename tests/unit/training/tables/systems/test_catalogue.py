"""The systems of Table 2, and the paper's figures."""

from training.tables.cost import count_parameters
from training.tables.systems.catalogue import BASELINE, PAPER_ROWS, SYSTEMS


# Table 2 as the paper prints it; its costs of the Transformer stand for both pairs of languages.
TABLE_2 = [
    ("ByteNet", 23.75, None, None, None),
    ("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    ("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    ("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    ("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    ("Deep-Att + PosUnk, ensemble", None, 40.4, None, 8.0e20),
    ("GNMT + RL, ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    ("ConvS2S, ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    ("Transformer (base)", 27.3, 38.1, 3.3e18, 3.3e18),
    ("Transformer (big)", 28.4, 41.8, 2.3e19, 2.3e19),
]


def test_the_figures_are_those_that_the_paper_prints():
    found = [(row.name, row.bleu_en_de, row.bleu_en_fr, row.flops_en_de, row.flops_en_fr) for row in PAPER_ROWS]
    assert found == TABLE_2


def test_each_system_has_a_config_and_a_recipe_on_the_same_text():
    assert list(SYSTEMS) == ["recurrent", "recurrent-attention", "convolutional", "transformer"]
    base = SYSTEMS[BASELINE].settings().values()
    for system in SYSTEMS.values():
        settings = system.settings().values()
        changed = {name for name, value in settings.items() if value != base[name]}
        assert changed <= {"config_name", "output_dir", "max_grad_norm"}
        assert settings["config_name"] == system.config_name
        assert system.config.model_type == system.name.split("-")[0].replace("transformer", "vaswani")
    recurrent = [SYSTEMS[name].config.to_diff_dict() for name in ("recurrent", "recurrent-attention")]
    assert [config.pop("attention") for config in recurrent] == ["none", "dot"]
    assert recurrent[0] == recurrent[1]


def test_all_have_about_as_many_weights_as_base():
    base = count_parameters(SYSTEMS[BASELINE].config)
    for system in SYSTEMS.values():
        assert 0.75 < count_parameters(system.config) / base < 1.25
