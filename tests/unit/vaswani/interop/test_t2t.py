"""Models of tensor2tensor: tensor2tensor/make.py says how it computed what ours must give."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vaswani.errors import UserError
from vaswani.interop.t2t import from_t2t, load_t2t, timing_signal
from vaswani.models.modeling_vaswani import sinusoids


FOLDER = Path(__file__).parent / "tensor2tensor"
RESULTS = ("source", "target", "logits", "greedy")
ROWS = {"tied": 8, "untied": 8, "without_target_space": None}


def read(case):
    with np.load(FOLDER / f"{case}.npz") as file:
        stored = dict(file)
    results = {name: torch.from_numpy(stored.pop(name)) for name in RESULTS}
    return stored, json.loads(str(stored.pop("hparams"))), results


def logits_of(model, results):
    source, target = results["source"], results["target"]
    starts = torch.zeros_like(target[:, :1])
    with torch.no_grad():
        return model(
            input_ids=source,
            attention_mask=(source != 0).long(),
            decoder_input_ids=torch.cat([starts, target[:, :-1]], 1),
        ).logits


@pytest.mark.smoke
@pytest.mark.parametrize(("case", "row"), ROWS.items())
def test_logits_and_greedy_translations_are_tensor2tensors(case, row):
    variables, hparams, results = read(case)
    ours = from_t2t(variables, hparams, row)
    torch.testing.assert_close(logits_of(ours, results), results["logits"], rtol=1e-4, atol=1e-4)
    source = results["source"]
    settings = {"num_beams": 1, "max_new_tokens": 10, "eos_token_id": None}  # it was asked for 10, whichever they are
    found = ours.generate(source, attention_mask=(source != 0).long(), **settings)
    assert torch.equal(found[:, 1:], results["greedy"])


@pytest.mark.parametrize(
    ("case", "row", "changes"),
    [("tied", 7, {}), ("untied", 8, {"norm_epsilon": 1e-6}), ("tied", 8, {"num_heads": 4})],
)
def test_another_setting_is_found_out(case, row, changes):
    variables, hparams, results = read(case)
    wrong = from_t2t(variables, hparams | changes, row)
    assert (logits_of(wrong, results) - results["logits"]).abs().max() > 1e-2


def test_the_config_says_what_it_is():
    variables, hparams, _ = read("untied")
    dropouts = {"layer_prepostprocess_dropout": 0.2, "attention_dropout": 0.3, "relu_dropout": 0.4}
    ours = from_t2t(variables, hparams | dropouts, 8)
    config = ours.config
    assert (config.vocab_size, config.d_model, config.encoder_ffn_dim, config.decoder_ffn_dim) == (24, 8, 12, 12)
    assert (config.encoder_layers, config.decoder_layers, config.head_dim, config.v_head_dim) == (2, 1, 2, 6)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.2, 0.3, 0.4)
    assert (config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (0, 1, 0)
    assert (config.layer_norm_eps, config.tie_word_embeddings, config.attention_bias) == (0.1, False, False)
    assert ours.generation_config.suppress_tokens == [0]
    named = {name: hparams[name] for name in ("hidden_size", "filter_size", "num_heads", "num_hidden_layers")}
    named |= {name: hparams[name] for name in hparams if name.startswith(("num_decoder", "attention_"))}
    config = from_t2t(variables, named | {"attention_dropout": 0.0}, 8).config  # for the rest, its own defaults
    assert (config.dropout, config.activation_dropout, config.layer_norm_eps) == (0.1, 0.0, 1e-6)


def test_what_training_left_in_a_checkpoint_is_left_out():
    variables, hparams, results = read("tied")
    slot = "transformer/body/encoder/layer_0/ffn/conv1/kernel"
    left = {"global_step": 5, f"training/{slot}/Adam": variables[slot], f"{slot}/Adam_1": variables[slot]}
    left |= {"losses_avg/problem_0/total_loss": 1.0, "training/beta1_power": 0.9}
    ours = from_t2t(variables | {name: np.asarray(value) for name, value in left.items()}, hparams, 8)
    torch.testing.assert_close(logits_of(ours, results), results["logits"], rtol=1e-4, atol=1e-4)


def test_one_table_for_both_embeddings_is_copied():
    variables, hparams, _ = read("untied")
    renamed = {
        name.replace("input_emb", "shared"): value for name, value in variables.items() if "target_emb" not in name
    }
    ours = from_t2t(renamed, hparams, 8)
    encoder, decoder = (stack.embed_tokens.weight for stack in (ours.model.encoder, ours.model.decoder))
    assert torch.equal(encoder, decoder)
    assert not torch.equal(encoder, ours.lm_head.weight)


def test_the_pieces_of_a_table_are_put_together_by_their_numbers():
    variables, hparams, results = read("untied")
    pieces = {}
    for name, value in variables.items():
        table, is_piece, number = name.partition("/weights_")
        if is_piece:  # 12 of two rows each, instead of 3
            parts = enumerate(np.split(value, 4), start=4 * int(number))
            pieces |= {f"{table}/weights_{place}": part for place, part in parts}
        else:
            pieces[name] = value
    ours = from_t2t(pieces, hparams, 8)
    torch.testing.assert_close(logits_of(ours, results), results["logits"], rtol=1e-4, atol=1e-4)


def test_its_positions_are_not_the_papers():
    table, paper = timing_signal(30, 16), sinusoids(torch.arange(30), 16)
    assert (table - torch.cat([paper[:, ::2], paper[:, 1::2]], 1)).abs().max() > 0.1
    assert table[7, 8 + 7].item() == pytest.approx(np.cos(7 / 10_000))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"layer_preprocess_sequence": "n"}, "layer_preprocess_sequence='n' must be 'none' or '' here"),
        ({"layer_postprocess_sequence": "da"}, "layer_postprocess_sequence='da' must be 'dan' or 'an' here"),
        ({"self_attention_type": "dot_product_relative"}, "self_attention_type='dot_product_relative' must be"),
        ({"pos": "emb"}, "pos='emb' must be 'timing' here"),
        ({"num_heads": None}, "num_heads=None must be a whole number of at least 1 in hparams.json"),
        ({"num_heads": 0}, "num_heads=0 must be a whole number of at least 1 in hparams.json"),
        ({"num_hidden_layers": -1}, "num_hidden_layers=-1 must be a whole number of at least 1 in hparams.json"),
        ({"num_decoder_layers": -1}, "num_decoder_layers=-1 must be a whole number of at least 0 in hparams.json"),
        ({"attention_key_channels": "8"}, "attention_key_channels='8' must be a whole number of at least 0 in"),
        ({"attention_key_channels": 1}, "hparams.json must describe what our Transformer can be: head_dim=0 must be"),
        ({"attention_dropout": 2}, "what our Transformer can be: attention_dropout=2 must be in"),
        ({"relu_dropout": None}, "what our Transformer can be: Validation error for field 'activation_dropout': Type"),
        ({"filter_size": 16}, "hparams do not fit the variables: size mismatch for "),
        ({"num_decoder_layers": 3}, "variable 'decoder/layer_2/encdec_attention/.*' must be in the checkpoint"),
        ({"num_encoder_layers": 1}, "variable 'encoder/layer_1/ffn/conv1/bias' must not be in the checkpoint"),
    ],
)  # fmt: skip
def test_what_ours_cannot_be_is_refused_by_name(changes, complaint):
    variables, hparams, _ = read("tied")
    with pytest.raises(UserError, match=complaint.replace("(", r"\(")):
        from_t2t(variables, hparams | changes, 8)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("norm_type", "noam"),
        ("multiply_embedding_mode", "none"),
        ("ffn_layer", "sepconv"),
        ("attention_variables_3d", True),
        ("prepend_mode", "prepend_inputs_full_attention"),
        ("proximity_bias", True),
        ("causal_decoder_self_attention", False),
        ("unidirectional_encoder", True),
        ("hard_attention_k", 3),
        ("num_area_layers", 1),
    ],
)
def test_every_setting_of_another_model_is_refused(name, value):
    variables, hparams, _ = read("tied")
    with pytest.raises(UserError, match=f"{name}={value!r} must be .* here"):
        from_t2t(variables, hparams | {name: value}, 8)


@pytest.mark.parametrize(("case", "row"), [("tied", None), ("tied", 32), ("tied", -1), ("without_target_space", 8)])
def test_the_target_space_must_be_told_where_there_is_one(case, row):
    variables, hparams, _ = read(case)
    with pytest.raises(UserError, match=f"target_space_id={row} must be"):
        from_t2t(variables, hparams, row)


@pytest.mark.parametrize("added", ["transformer/body/encoder/layer_0/self_attention/multihead_attention/q/bias"])
def test_a_weight_without_a_place_here_is_refused(added):
    variables, hparams, _ = read("tied")
    with pytest.raises(UserError, match="q/bias' must not be in the checkpoint: our Transformer has no such weight"):
        from_t2t(variables | {added: np.zeros(8)}, hparams, 8)


def test_two_vocabularies_are_refused():
    variables, hparams, _ = read("untied")
    renamed = {name.replace("24_8/target", "30_8/target"): value for name, value in variables.items()}
    with pytest.raises(UserError, match="symbol_modality_24_8 and symbol_modality_30_8 must be of one vocabulary"):
        from_t2t(renamed, hparams, 8)


def test_no_embeddings_are_refused():
    variables, hparams, _ = read("tied")
    with pytest.raises(UserError, match="variables must have a table of embeddings"):
        from_t2t({name: value for name, value in variables.items() if "symbol" not in name}, hparams, 8)


def test_a_folder_without_a_checkpoint_asks_for_tensorflow_or_says_what_is_missing(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"must be a folder with hparams.json and a checkpoint of tensor2tensor: .*No"):
        load_t2t(tmp_path)
    (tmp_path / "hparams.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(UserError, match=r'needs the package tensorflow, .*pip install "\.\[tensor2tensor\]"'):
        load_t2t(tmp_path)


def test_a_file_of_variables_that_is_broken_is_told_in_a_sentence(tmp_path):
    whole = (FOLDER / "tied.npz").read_bytes()
    (tmp_path / "hparams.json").write_text("{}")
    for broken in (b"", b"PK half", whole[: len(whole) // 2], whole[:3000] + b"x" * 400 + whole[3400:]):
        (tmp_path / "variables.npz").write_bytes(broken)
        with pytest.raises(UserError, match=r"must be a folder with hparams.json and a checkpoint of tensor2tensor: "):
            load_t2t(tmp_path)


def test_a_checkpoint_of_tensorflow_is_read_by_its_own_reader(tmp_path, monkeypatch):
    """A stand-in for TensorFlow, which is too large to install for a test."""
    variables, hparams, results = read("tied")
    (tmp_path / "hparams.json").write_text(json.dumps(hparams))

    class Reader:
        def __init__(self, folder):
            assert folder == str(tmp_path)

        def get_variable_to_shape_map(self):
            return {name: value.shape for name, value in variables.items()}

        def get_tensor(self, name):
            return variables[name]

    class TensorFlow:
        class train:
            load_checkpoint = Reader

    monkeypatch.setitem(sys.modules, "tensorflow", TensorFlow)
    ours = load_t2t(tmp_path, 8)
    torch.testing.assert_close(logits_of(ours, results), results["logits"], rtol=1e-4, atol=1e-4)
