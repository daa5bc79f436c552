import torch
from transformers import GenerationConfig

from vaswani.models import decoding_vaswani
from vaswani.models.decoding_vaswani import DecodingSettings, asks_for_something


THEIR_DEFAULTS = GenerationConfig._get_default_generation_params()

# What our searches do not know of transformers 5.23. A field that a later release adds comes to these by itself.
FOREIGN = {
    "assistant_early_exit", "cache_implementation", "constraints", "diversity_penalty", "do_sample",
    "dola_layers", "force_words_ids", "guidance_scale", "is_assistant", "low_memory", "max_time", "num_beam_groups",
    "output_attentions", "output_hidden_states", "penalty_alpha", "prefill_chunk_size", "prompt_lookup_num_tokens",
    "stop_strings", "token_healing", "use_mtp",
}  # fmt: skip


def test_every_field_of_a_generation_config_is_ours_or_transformers(monkeypatch):
    class Later(GenerationConfig):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.new_in_a_later_release = None

    monkeypatch.setattr(decoding_vaswani, "GenerationConfig", Later)
    found = set()
    for name in vars(Later()):
        config = Later()
        setattr(config, name, [3] if name == "suppress_tokens" else 3)
        foreign = DecodingSettings.read({}, None, config).foreign
        assert foreign in (name, None)
        found |= {name} if foreign else set()
    assert found == {"new_in_a_later_release"} | (FOREIGN & vars(GenerationConfig()).keys())
    assert DecodingSettings.read({}, None, Later(**THEIR_DEFAULTS)).foreign is None


def test_values_that_change_nothing_ask_for_nothing():
    for call in ({"guidance_scale": 1}, {"stop_strings": []}, {"prefill_chunk_size": None}, {"do_sample": False}):
        assert DecodingSettings.read(call, None, GenerationConfig()).foreign is None
    config = GenerationConfig()
    config.update(note="of one's own", allow_custom_entries=True)
    assert DecodingSettings.read({}, config, config).foreign is None
    assert DecodingSettings.read({"guidance_scale": 2}, None, GenerationConfig()).foreign == "guidance_scale"
    assert asks_for_something("guidance_scale", torch.tensor([1, 1]))


def test_a_misspelt_setting_is_named_and_those_of_older_releases_are_not(monkeypatch):
    said = []
    monkeypatch.setattr(decoding_vaswani.logger, "warning_once", said.append)
    config = GenerationConfig(
        num_beems=2, length_penalty_alfa=3, num_beam_groups=1, diversity_penalty=0.0, note="mine"
    )
    DecodingSettings.read({}, config, GenerationConfig())
    assert sorted(said) == [
        "length_penalty_alfa in a generation config is not known: the nearest setting is length_penalty_alpha",
        "num_beems in a generation config is not known: the nearest setting is num_beams",
    ]


def test_a_config_that_asks_for_both_penalties_is_not_passed_over_in_silence(monkeypatch):
    said = []
    monkeypatch.setattr(decoding_vaswani.logger, "warning_once", said.append)
    config = GenerationConfig(length_penalty=1.2)
    config.length_penalty_alpha = 0.6
    assert DecodingSettings.read({}, config, GenerationConfig()).length_penalty_alpha is None
    assert said == [
        "Of length_penalty_alpha=0.6 and length_penalty=1.2 in a generation config, the second counts: transformers' "
        "beam search runs"
    ]
