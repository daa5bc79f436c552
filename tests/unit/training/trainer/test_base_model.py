"""What a run may start from, and what it is told where that does not do."""

import json
import shutil

import pytest
import torch
from flat_settings import make_settings
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import MarianConfig

from training.trainer.base_model import load_base_model
from vaswani import VaswaniForConditionalGeneration
from vaswani.errors import UserError
from vaswani.models.decoding_vaswani import PAPERS_DECODING
from vaswani.tokenization import train_tokenizer


WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["ab ab abc", "cd cd cde"], 260)


@pytest.fixture
def base(random_model, tokenizer, tmp_path):
    """Return the folder of a published model that decodes in a manner of its own."""
    model = random_model(vocab_size=260, dropout=0.3, source_lang="en", target_lang="de")
    model.generation_config.update(num_beams=3, length_penalty_alpha=0.9, allow_custom_entries=True)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def settings(base, **given):
    return make_settings(
        model_name_or_path=str(base),
        **{"source_lang": "en", "target_lang": "de", "output_dir": "runs/elsewhere"} | given,
    )


def change_config(base, **fields):
    path = base / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weights(base, change):
    weights = load_file(base / WEIGHTS)
    save_file(change(weights), base / WEIGHTS, metadata={"format": "pt"})


def test_config_weights_and_decoding_are_those_of_the_folder(base):
    model, origin = load_base_model(settings(base, attn_implementation="eager"))
    saved = load_file(base / WEIGHTS)
    assert all(torch.equal(weight, saved[name]) for name, weight in model.named_parameters())
    assert (model.config.dropout, model.config.vocab_size, model.config._attn_implementation) == (0.3, 260, "eager")
    assert (model.generation_config.num_beams, model.generation_config.length_penalty_alpha) == (3, 0.9)
    assert (origin["base_model"], origin["base_model_direction"]) == ("base", "en-de")
    (base / "generation_config.json").unlink()
    decoding = load_base_model(settings(base))[0].generation_config
    assert {name: getattr(decoding, name) for name in PAPERS_DECODING} == PAPERS_DECODING


def test_weights_saved_in_half_precision_are_trained_in_full(base):
    half = VaswaniForConditionalGeneration.from_pretrained(base, dtype=torch.bfloat16)
    half.save_pretrained(base)
    assert load_file(base / WEIGHTS)["model.shared.weight"].dtype == torch.bfloat16
    model, _ = load_base_model(settings(base))
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.dtype == model.config.dtype == torch.float32


def test_embeddings_that_are_not_shared_stay_so(base, random_model):
    random_model(vocab_size=260, tie_word_embeddings=False).save_pretrained(base)
    model, _ = load_base_model(settings(base))
    saved = load_file(base / WEIGHTS)
    for name in ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"):
        assert torch.equal(model.get_parameter(name), saved[name])
    assert not torch.equal(saved["lm_head.weight"], saved["model.decoder.embed_tokens.weight"])


def test_a_file_that_is_written_anew_changes_nothing_any_more(base):
    model, _ = load_base_model(settings(base))
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    with open(base / WEIGHTS, "r+b") as file:
        file.write(bytes((base / WEIGHTS).stat().st_size))
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_another_direction_is_what_the_model_has_from_now_on(base):
    model, origin = load_base_model(settings(base, target_lang="nl"))
    assert (model.config.source_lang, model.config.target_lang) == ("en", "nl")
    assert origin["base_model_direction"] == "en-de"


def test_the_checksum_is_that_of_the_weights_wherever_they_lie(base, tmp_path):
    copied = shutil.copytree(base, tmp_path / "copy")
    checksums = [load_base_model(settings(folder))[1]["base_model_sha256"] for folder in (base, copied)]
    change_weights(copied, lambda weights: weights | {"model.shared.weight": weights["model.shared.weight"] * 2})
    checksums.append(load_base_model(settings(copied))[1]["base_model_sha256"])
    assert checksums[0] == checksums[1] != checksums[2]


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ('output_dir = "/somewhere/runs/en-de"\n', "en-de"),
        ('output_dir = "runs/en-de"\nhub_model_id = "me/en-de"\n', "me/en-de"),
    ],
)
def test_a_folder_is_called_as_its_run_was_and_never_by_its_path(base, recipe, name):
    (base / "recipe.toml").write_text(recipe)
    assert load_base_model(settings(base))[1]["base_model"] == name


def test_a_hub_id_is_its_name_and_leaves_no_trace_in_what_is_saved(base, tmp_path, monkeypatch):
    kept = tmp_path / "cache" / "models--me--model"
    shutil.copytree(base, kept / "snapshots" / "0123")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0123")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    model, origin = load_base_model(settings("me/model", output_dir="."))
    assert origin["base_model"] == "me/model"
    assert model.generation_config.num_beams == 3
    model.save_pretrained(tmp_path / "saved")
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "saved" / name).read_bytes() == (base / name).read_bytes()


def test_what_is_given_too_may_agree(base, tmp_path):
    for folder in (tmp_path / "config", tmp_path / "tokenizer"):
        shutil.copytree(base, folder)
    given = {"config_name": tmp_path / "config", "tokenizer_name": tmp_path / "tokenizer"}
    load_base_model(settings(base, vocab_size=260, **{field: str(path) for field, path in given.items()}))


def test_a_checkpoint_is_told_its_tokenizer(base, tmp_path):
    (base / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    (base / "tokenizer_config.json").rename(tmp_path / "tokenizer_config.json")
    with pytest.raises(UserError, match=r"has no tokenizer, as no checkpoint has: name that of its run's model/"):
        load_base_model(settings(base))
    load_base_model(settings(base, tokenizer_name=str(tmp_path)))


def test_another_tokenizer_is_refused(base, tmp_path):
    train_tokenizer(["xy xy xyz", "uv uv uvw"], 260).save_pretrained(tmp_path / "other")
    train_tokenizer(["ab ab abc"], 259).save_pretrained(tmp_path / "smaller")
    with pytest.raises(UserError, match=r"tokenizer_name='.*other' contradicts model_name_or_path='.*base'"):
        load_base_model(settings(base, tokenizer_name=str(tmp_path / "other")))
    with pytest.raises(UserError, match="has a vocabulary of 260 types but a tokenizer of 259: both must be equal"):
        load_base_model(settings(base, tokenizer_name=str(tmp_path / "smaller")))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"vocab_size": 300}, r"vocab_size=300 contradicts model_name_or_path='.*base', which has 260 types"),
        (
            {"config_name": "base-en-de"},
            r"config_name='base-en-de' contradicts model_name_or_path='.*base': d_model is 512 there, 16 here; .*"
            "dropout is 0.1 there, 0.3 here",
        ),
        ({"config_name": "nowhere"}, "config_name='nowhere' must be a folder of hub_configs/"),
    ],
)
def test_contradictions_are_refused_with_both_values(base, given, message, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # so that nothing is asked for again and again
    with pytest.raises(UserError, match=message):
        load_base_model(settings(base, **given))


def without_fc1(weights):
    return {name: weight for name, weight in weights.items() if "fc1" not in name}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "must be a model folder or a Hub id that can be reached"),
        (lambda base: (base / "config.json").write_text(MarianConfig().to_json_string()), "is a 'marian' model"),
        (lambda base: change_config(base, dropout="x"), "must be a model folder .*: Validation error .* 'dropout'"),
        (
            lambda base: (base / WEIGHTS).unlink(),
            "cannot be loaded: .*no file named model.safetensors",
        ),
        (lambda base: (base / WEIGHTS).write_bytes(b"torn"), "cannot be loaded: .*header"),
        (
            lambda base: change_weights(base, without_fc1),
            "do not fit its config.json: 8 missing, such as model",
        ),
        (
            lambda base: change_weights(base, lambda weights: weights | {"new": torch.ones(1)}),
            ": 1 unexpected, such as ",
        ),
        (
            lambda base: change_config(base, encoder_ffn_dim=64),
            "do not fit its config.json: 6 mismatched, such as ",
        ),
        (
            lambda base: (base / "generation_config.json").write_text("{"),
            "has a generation_config.json that cannot be used: ",
        ),
        (
            lambda base: change_weights(base, lambda weights: weights | {"lm_head.weight": torch.ones(260, 16)}),
            "two matrices where tie_word_embeddings=True wants one",
        ),
    ],
    ids=[
        "absent",
        "marian",
        "wrong type",
        "no weights",
        "torn",
        "missing",
        "unexpected",
        "mismatched",
        "search",
        "not tied",
    ],
)
def test_what_is_no_whole_model_of_ours_is_one_clear_sentence(base, spoil, message, capfd):
    spoil(base)
    with pytest.raises(UserError, match=rf"^model_name_or_path='.*base' .*{message}") as error:
        load_base_model(settings(base))
    assert "\n" not in str(error.value)
    assert "LOAD REPORT" not in capfd.readouterr().err


def test_attention_that_is_not_here_is_refused(base):
    with pytest.raises(UserError, match="attn_implementation='spda' cannot be used here"):
        load_base_model(settings(base, attn_implementation="spda"))


@pytest.mark.parametrize("output_dir", [".", "base"])
def test_a_model_that_the_run_would_write_over_is_refused(base, output_dir):
    with pytest.raises(UserError, match="must not lie in output_dir="):
        load_base_model(settings(base, output_dir=str(base.parent / output_dir)))
