import argparse

import pytest

from vaswani.cli import Parser
from vaswani.cli.evaluate_flags import DEFAULTS, add_flags, check, fill_in_defaults
from vaswani.cli.shared.flags import add_batch_flags, add_engine_flag, add_model_flags
from vaswani.errors import UserError


FILES = ["--hypothesis", "hyp.de", "--reference", "test.de"]
MODEL = ["--model", "model", "--source", "test.en", "--reference", "test.de"]
# Each flag that only a model has a use for, with a value, its default if it has one, and what is said of it.
OF_MODELS = {
    "num_beams=2": ["--num_beams", "2"],
    "length_penalty_alpha=0.0": ["--length_penalty_alpha", "0"],
    "max_new_tokens=9": ["--max_new_tokens", "9"],
    "min_new_tokens=1": ["--min_new_tokens", "1"],
    "max_batch_tokens=4096": ["--max_batch_tokens", "4096"],
    "workers=1": ["--workers", "1"],
    "torch_compile": ["--torch_compile"],
    "engine='torch'": ["--engine", "torch"],
    "tokenizer='model'": ["--tokenizer", "model"],
    "device='cpu'": ["--device", "cpu"],
    "dtype='auto'": ["--dtype", "auto"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parse(*flags):
    parser = Parser()
    add_flags(parser)
    return parser.parse_args(flags)


@pytest.mark.parametrize(("said", "flags"), OF_MODELS.items())
def test_flags_of_models_are_refused_where_there_is_none(said, flags):
    with pytest.raises(UserError) as refused:
        check(parse(*FILES, *flags))
    assert str(refused.value) == f"{said} is for a model: a hypothesis has been written already"
    check(parse(*MODEL, *flags))
    check(parse(*FILES, "--source", "test.en", "--baseline_model", "other", *flags))


@pytest.mark.parametrize("flags", [["--shortlist"], ["--engine", "onnxruntime"]])
def test_what_no_baseline_uses_is_refused_beside_one(flags):
    with pytest.raises(UserError, match="is for a model: a hypothesis has been written already"):
        check(parse(*FILES, "--source", "test.en", "--baseline_model", "other", *flags))


def test_an_ensemble_begins_with_a_model():
    check(parse(*MODEL, "--ensemble", "a", "b"))
    with pytest.raises(UserError, match=r"^ensemble=\['a'\] is for model, which is not given$"):
        check(parse(*FILES, "--ensemble", "a"))
    with pytest.raises(UserError, match=r"^ensemble is for engine 'torch', not for 'onnxruntime'$"):
        check(parse(*MODEL, "--ensemble", "a", "--engine", "onnxruntime"))


@pytest.mark.parametrize("scored", [FILES, MODEL])
@pytest.mark.parametrize(
    ("flag", "value"), [("split", "test"), ("dataset_config_name", "en-de"), ("source_lang", "en")]
)
def test_flags_of_datasets_are_refused_beside_files(flag, value, scored):
    with pytest.raises(UserError) as refused:
        check(parse(*scored, f"--{flag}", value))
    assert str(refused.value) == f"{flag}={value!r} is for a dataset, but dataset_name is not given"
    check(parse("--model", "model", "--dataset_name", "multi30k", f"--{flag}", value))


def test_a_source_is_refused_beside_a_dataset():
    with pytest.raises(UserError, match=r"^source='test\.en' is for files, but dataset_name='multi30k' is given$"):
        check(parse("--model", "model", "--dataset_name", "multi30k", "--source", "test.en"))


@pytest.mark.parametrize(("flag", "value"), [("dataset_config_name", "en-de"), ("source_lang", "en")])
def test_a_treebank_has_neither_configurations_nor_columns(flag, value):
    with pytest.raises(UserError) as refused:
        check(parse("--model", "model", "--dataset_name", "treebank:wsj", f"--{flag}", value))
    said = f"{flag}={value!r} is for other datasets, but dataset_name='treebank:wsj' is a treebank"
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--output", "test.de"], "output='test.de' is reference='test.de' too"),
        (["--json", "hyp.de"], "json='hyp.de' is hypothesis='hyp.de' too"),
        (["--source", "test.en", "--output", "link"], "output='link' is source='test.en' too"),
        (["--baseline_hypothesis", "old.de", "--json", "old.de"], "json='old.de' is baseline_hypothesis='old.de' too"),
        (["--json", "both", "--output", "both"], "output='both' is json='both' too"),
    ],
)
def test_no_file_is_written_that_is_read_or_written_otherwise(flags, said, folder):
    (folder / "test.en").touch()
    (folder / "link").symlink_to("test.en")
    with pytest.raises(UserError) as refused:
        check(parse(*FILES, *flags))
    assert str(refused.value) == f"{said}: choose another file"


def test_the_metrics_and_the_card_of_a_model_are_not_written_over(folder):
    run = folder / "run"
    (run / "model").mkdir(parents=True)
    for name in ("metrics.jsonl", "recipe.toml", "model/README.md"):
        (run / name).touch()
    model = ["--model", "run/model", *MODEL[2:]]
    with pytest.raises(UserError, match=r"^json='run/metrics\.jsonl' is the model's metrics too: "):
        check(parse(*model, "--json", "run/metrics.jsonl"))
    with pytest.raises(UserError, match=r"^output='run/model/README\.md' is the model's card too: "):
        check(parse(*model, "--output", "run/model/README.md"))
    check(parse(*model, "--output", "run/model/out.de", "--json", "run/row.json"))


def test_json_without_a_file_is_for_standard_output(folder):
    check(parse(*FILES, "--json"))
    assert not list(folder.iterdir())


def test_defaults_are_those_of_the_flags_that_others_have_too():
    parser = argparse.ArgumentParser()
    for add in (add_batch_flags, add_engine_flag, add_model_flags):
        add(parser)
    shared = vars(parser.parse_args([]))
    assert {name: value for name, value in DEFAULTS.items() if name != "split"} == {
        name: value for name, value in shared.items() if value is not None
    }


def test_defaults_take_the_place_of_what_was_not_given_alone():
    options = parse(*MODEL, "--dtype", "int8")
    fill_in_defaults(options)
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS | {"dtype": "int8"}
