"""Smaller models in the proportions of large ones."""

import json
from pathlib import Path

import pytest

from training.settings import ROOT
from training.tables.rows import ROWS
from training.tables.scaling import scale_config, write_scaled_config
from vaswani import ConvolutionalConfig, RecurrentConfig
from vaswani.errors import UserError


@pytest.mark.parametrize("scale", [1 / 16, 1 / 8, 3 / 16, 1 / 4, 1 / 2])
def test_scaled_rows_keep_their_ratios(scale, tmp_path):
    base, small_base = ROWS["base"].config, scale_config(ROWS["base"].config, scale)
    for row in ROWS.values():
        config, small = row.config, scale_config(row.config, scale)
        for name in ("d_model", "encoder_ffn_dim", "head_dim", "encoder_layers", "encoder_attention_heads"):
            # a / b = c / d, without division
            assert getattr(small, name) * getattr(base, name) == getattr(config, name) * getattr(small_base, name)
        assert (small.v_head_dim or small.head_dim) == (config.v_head_dim or config.head_dim) * scale
        assert small.decoder_layers * 2 == config.decoder_layers
        assert (small.dropout, small.position_embedding_type) == (config.dropout, config.position_embedding_type)
        write_scaled_config(row.config, scale, tmp_path / row.name)
        written = json.loads((tmp_path / row.name / "config.json").read_text())
        whole = ROOT / "hub_configs" / row.config_name
        assert written.keys() == json.loads((whole / "config.json").read_text()).keys()
        decoding = "generation_config.json"
        assert (tmp_path / row.name / decoding).read_text() == (whole / decoding).read_text()
        assert {name: getattr(small, name) for name in written if hasattr(small, name)} == written


def test_a_row_at_another_scale_is_not_written_over(tmp_path):
    base = ROWS["base"]
    write_scaled_config(base.config, 0.25, tmp_path)
    written = (tmp_path / "config.json").read_text()
    write_scaled_config(base.config, 0.25, tmp_path)
    with pytest.raises(UserError, match=r"holds the row at another scale than 0\.5: choose another output_dir"):
        write_scaled_config(base.config, 0.5, tmp_path)
    assert (tmp_path / "config.json").read_text() == written


def test_a_config_whose_writing_was_cut_short_is_written_anew(write_half, tmp_path, monkeypatch):
    base = ROWS["base"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_half)
        with pytest.raises(OSError, match="full"):
            write_scaled_config(base.config, 0.25, tmp_path)
    write_scaled_config(base.config, 0.25, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["d_model"] == 128


def test_at_scale_1_nothing_changes():
    for row in ROWS.values():
        assert scale_config(row.config, 1).to_diff_dict() == row.config.to_diff_dict()


@pytest.mark.parametrize("scale", [0, -0.5, 0.3, 2, 1.5])
def test_other_scales_are_refused(scale):
    with pytest.raises(UserError, match=rf"scale={scale} must be a multiple of 1/16"):
        scale_config(ROWS["base"].config, scale)


def test_other_models_are_scaled_by_the_same_rule():
    small = scale_config(RecurrentConfig(attention="additive", dropout=0.4), 0.5)
    assert (small.d_model, small.num_layers, small.attention, small.dropout) == (500, 2, "additive", 0.4)
    assert scale_config(RecurrentConfig(num_layers=1), 0.5).num_layers == 1
    layers = {"encoder_channels": [32, 64, 96], "decoder_channels": [64, 128]}
    layers |= {"encoder_kernel_sizes": [3, 5, 1], "decoder_kernel_sizes": [5, 3]}
    small = scale_config(ConvolutionalConfig(d_model=64, **layers), 0.5)
    assert (small.d_model, small.encoder_channels, small.decoder_channels) == (32, [16, 48], [32])
    assert (small.encoder_kernel_sizes, small.decoder_kernel_sizes) == ([3, 1], [5])
    with pytest.raises(UserError, match=r"scale=0.0625 would make d_model=1000 a fraction, 62.5"):
        scale_config(RecurrentConfig(), 1 / 16)
