import re
import tomllib
from pathlib import Path

import pytest

from training.recipe import NAMES, parse_settings, write_recipe
from training.settings import ROOT
from vaswani.errors import UserError


GIVEN = ["--dataset_name", "somewhere", "--source_lang", "en", "--target_lang", "de"]


def pick(settings, *names):
    return tuple(settings.values()[name] for name in names)


def recipe(folder: Path, text: str) -> str:
    path = folder / "recipe.toml"
    path.write_text('dataset_name = "x"\nsource_lang = "en"\ntarget_lang = "de"\n' + text, encoding="utf-8")
    return str(path)


def test_defaults_are_the_papers_base_model():
    settings = parse_settings(GIVEN)
    assert pick(settings, "config_name", "vocab_size", "max_steps") == (
        "base-en-de",
        37000,
        100_000,
    )
    assert (
        settings.optimization.max_tokens_per_batch,
        settings.optimization.warmup_steps,
        settings.optimization.label_smoothing,
    ) == (25_000, 4000, 0.1)
    assert (
        settings.optimization.adam_beta1,
        settings.optimization.adam_beta2,
        settings.optimization.adam_epsilon,
    ) == (0.9, 0.98, 1e-9)


def test_no_arguments_mean_the_demo():
    assert parse_settings([]).data.dataset_name == "grammar"


def test_the_command_line_wins_over_the_recipe_and_the_recipe_over_the_default(tmp_path):
    settings = parse_settings([recipe(tmp_path, "max_steps = 7\nseed = 3\n"), "--max_steps", "9"])
    assert pick(settings, "max_steps", "seed", "warmup_steps") == (
        9,
        3,
        4000,
    )


@pytest.mark.parametrize("path", sorted((ROOT / "training" / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_that_ships_is_valid(path):
    assert parse_settings([str(path)]).optimization.max_steps > 0


def test_text_that_is_given_takes_the_place_of_the_recipes(tmp_path):
    given = recipe(tmp_path, 'dataset_config_name = "y"\n')
    files = ["--train_file=a.tsv", "--validation_file", "b.tsv"]
    settings = parse_settings([given, *files])
    assert pick(settings, "dataset_name", "dataset_config_name", "train_file") == (
        None,
        None,
        ["a.tsv"],
    )
    write_recipe(settings, {}, tmp_path / "own.toml")
    settings = parse_settings([str(tmp_path / "own.toml"), "--dataset_name", "z"])
    assert pick(settings, "dataset_name", "train_file", "validation_file") == ("z", None, None)
    with pytest.raises(UserError, match="exactly one of dataset_name and train_file"):
        parse_settings([given, *files, "--dataset_name", "z"])


@pytest.mark.parametrize(("name", "remains"), [("grammar", None), ("treebank:z", None), ("elsewhere/x", "y")], ids=str)
def test_a_recipes_configuration_stays_with_a_dataset_that_may_have_it(name, remains, tmp_path):
    given = recipe(tmp_path, 'dataset_config_name = "y"\n')
    (tmp_path / "child.toml").write_text(f'extends = "recipe.toml"\ndataset_name = "{name}"\n')
    for arguments in (
        [given, f"--dataset_name={name}"],
        [given, "--dataset-name", name, "--seed=1"],
        [str(tmp_path / "child.toml")],
    ):
        assert pick(parse_settings(arguments), "dataset_name", "dataset_config_name") == (name, remains)


@pytest.mark.parametrize("name", ["grammar", "treebank:z"])
def test_a_configuration_beside_text_that_has_none_is_refused(name, tmp_path):
    sentence = r"^dataset_config_name='y' must be left out: {} has no configurations$"
    given = recipe(tmp_path, 'dataset_config_name = "y"\n')
    for flags in (["--train_file=a.tsv", "--validation_file", "b.tsv"], [f"--dataset_name={name}"]):
        source = "train_file='a.tsv'" if len(flags) > 1 else f"dataset_name='{name}'"
        with pytest.raises(UserError, match=sentence.format(source)):
            parse_settings([given, *flags, "--dataset_config_name=y"])


def test_a_model_to_start_from_takes_the_place_of_the_recipes_config_and_vocabulary(tmp_path):
    given = recipe(tmp_path, 'config_name = "demo"\nvocab_size = 1500\ntokenizer_name = "t"\nmax_steps = 7\n')
    (tmp_path / "child.toml").write_text('extends = "recipe.toml"\nmodel_name_or_path = "m"\n')
    started = ([given, "--model_name_or_path=m"], [given, "--model-name-or-path", "m"], [str(tmp_path / "child.toml")])
    for arguments in started:
        settings = parse_settings(arguments)
        assert pick(settings, "config_name", "vocab_size", "tokenizer_name") == (
            None,
            None,
            None,
        )
        assert pick(settings, "model_name_or_path", "max_steps") == ("m", 7)
    write_recipe(settings, {}, tmp_path / "resolved.toml")
    assert parse_settings([str(tmp_path / "resolved.toml")]) == settings


def test_what_is_given_beside_a_model_to_start_from_stays_to_be_compared(tmp_path):
    flags = ["--model_name_or_path=m", "--config_name=demo", "--vocab_size=5", "--tokenizer_name=t"]
    in_recipe = recipe(
        tmp_path, 'model_name_or_path = "m"\nconfig_name = "demo"\nvocab_size = 5\ntokenizer_name = "t"'
    )
    for arguments in ([*GIVEN, *flags], [in_recipe]):
        settings = parse_settings(arguments)
        assert pick(settings, "config_name", "vocab_size", "tokenizer_name") == (
            "demo",
            5,
            "t",
        )


def test_a_recipe_takes_over_what_the_one_that_it_extends_has(tmp_path):
    (tmp_path / "recipes").mkdir()
    recipe(tmp_path, "max_steps = 7\nseed = 3\n[run]\ntorch = 'x'\n")
    (tmp_path / "recipes" / "child.toml").write_text('extends = "../recipe.toml"\nseed = 4\n')
    (tmp_path / "recipes" / "grandchild.toml").write_text('extends = "child.toml"\nwarmup_steps = 5\n')
    settings = parse_settings([str(tmp_path / "recipes" / "grandchild.toml")])
    assert pick(settings, "max_steps", "seed", "warmup_steps") == (
        7,
        4,
        5,
    )


def test_a_recipe_may_take_other_text_than_the_one_that_it_extends(tmp_path):
    recipe(tmp_path, 'dataset_config_name = "y"\n')
    files = 'train_file = ["a.tsv"]\nvalidation_file = ["b.tsv"]\n'
    (tmp_path / "child.toml").write_text(f'extends = "recipe.toml"\n{files}')
    settings = parse_settings([str(tmp_path / "child.toml")])
    assert pick(settings, "dataset_name", "dataset_config_name", "train_file") == (
        None,
        None,
        ["a.tsv"],
    )


@pytest.mark.parametrize("flags", [["--weight_decay", "none"], ["--weight-decay=None", "--seed", "5"]])
def test_none_takes_away_what_a_recipe_says(flags, tmp_path):
    path = recipe(tmp_path, "weight_decay = 0.1\nmax_grad_norm = 25.0\nvocab_size = 9\n")
    settings = parse_settings([path, *flags, "--max_steps", "7"])
    assert pick(settings, "weight_decay", "max_grad_norm", "max_steps") == (None, 25.0, 7)
    assert parse_settings([path, "--tokenizer_name", "none"]).model.vocab_size == 9
    assert parse_settings([*GIVEN, "--max_time", "none"]).run.max_time is None
    (tmp_path / "child.toml").write_text('extends = "recipe.toml"\nweight_decay = "none"\n')
    assert parse_settings([str(tmp_path / "child.toml")]).optimization.weight_decay is None
    assert parse_settings([str(tmp_path / "child.toml"), "--weight_decay", "2"]).optimization.weight_decay == 2


def test_what_must_be_given_is_not_taken_away(tmp_path):
    with pytest.raises(UserError, match=r"max_steps.*: invalid int value: 'none'"):
        parse_settings([recipe(tmp_path, "max_steps = 7\n"), "--max_steps", "none"])


def test_a_recipe_that_extends_itself_is_refused(tmp_path):
    for name, origin in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.toml").write_text(f'extends = "{origin}.toml"\n')
    with pytest.raises(UserError, match=r"a\.toml extends itself"):
        parse_settings([str(tmp_path / "a.toml")])


def test_a_recipe_extends_a_path(tmp_path):
    (tmp_path / "a.toml").write_text("extends = 3\n")
    with pytest.raises(UserError, match=r"a\.toml: extends=3 must be the path of a recipe"):
        parse_settings([str(tmp_path / "a.toml")])


def test_a_value_in_a_recipe_may_begin_with_a_hyphen(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('output_dir = "-trial"\n')
    assert parse_settings([str(path), *GIVEN]).run.output_dir == "-trial"


def test_a_resolved_recipe_gives_the_same_settings(tmp_path):
    flags = [*GIVEN, "--max_steps", "5", "--adam_epsilon", "1e-9", "--max_time", "1.5", "--output_dir", "runs/𠮷"]
    settings = parse_settings(flags)
    for once in (
        ["--overwrite_output_dir"],
        ["--resume_from_checkpoint", "latest"],
    ):  # of one start, not of the recipe
        write_recipe(parse_settings([*flags, *once]), {"torch": '2.0 "x"', "processes": 2}, tmp_path / "recipe.toml")
        assert parse_settings([str(tmp_path / "recipe.toml")]) == settings


def test_names_of_files_may_have_commas_in_flags_and_recipes(tmp_path):
    files, recipe = ["may, 2026.en", "b.de"], tmp_path / "recipe.toml"
    recipe.write_text('train_file = ["may, 2026.en", "b.de"]\nvalidation_file = "c,d.tsv"\n')
    for given in ([str(recipe)], ["--train_file", *files, "--validation_file", "c,d.tsv"]):
        settings = parse_settings([*given, "--source_lang", "en", "--target_lang", "de"])
        assert pick(settings, "train_file", "validation_file") == (files, ["c,d.tsv"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max_step", "5"], "unknown flag '--max_step': the nearest known one is 'max_steps'"),
        (["--max_steps", "five"], "max_steps.*invalid int value: 'five'"),
        (["--max_steps", "0"], "max_steps=0 must be at least 1"),
        (["--save_steps", "-1"], "save_steps=-1 must be at least 0"),
        (["--max_tokens_per_batch", "100"], "max_tokens_per_batch=100 must hold .* max_source_length=256"),
        (["--max_target_length", "1"], "max_target_length=1 must be at least 2"),
        (["--label_smoothing", "1.0"], r"label_smoothing=1.0 must be in \[0, 1\)"),
        (["--mixed_precision", "int3"], "mixed_precision.*'int3'.*bf16"),
        (["--target_lang", "en"], "source_lang and target_lang are both 'en'"),
        (["--source_lang", ""], "source_lang is missing"),
        (["--train_file", "a.tsv"], "exactly one of dataset_name and train_file"),
        (["--max_length_ratio", "1"], "max_length_ratio=1.0 must be above 1"),
        (
            ["--average_checkpoints", "5", "--save_steps", "0"],
            "average_checkpoints=5 must be at most the 0 checkpoints",
        ),
        (["--average_checkpoints", "5", "--save_total_limit", "3"], "save_total_limit=3 must be at least"),
        (["--max_tokens_per_device", "100"], "max_tokens_per_device=100 must hold .* max_source_length=256"),
        (["--vocab_size", "0"], "vocab_size=0 must be at least 1"),
        (["--length_groups", "0"], "length_groups=0 must be at least 1"),
        (["--treebank_parts", "1"], "treebank_parts=1 must be 0, or at least 2 words"),
        (["--max_time", "0"], "max_time=0.0 must be above 0 minutes"),
        (["--early_stopping_patience", "0"], "early_stopping_patience=0 must be at least 1"),
        (["--early_stopping_patience", "2", "--eval_steps", "0"], "early_stopping_patience=2 needs eval_steps"),
        (["--early_stopping_patience", "2", "--max_steps", "99"], "eval_steps=5000 must be at most max_steps=99"),
        (["--metric_for_best_model", "bleu"], "metric_for_best_model.*'bleu'.*sacrebleu"),
        (["--learning_rate_factor", "nan"], "learning_rate_factor=nan must be a finite number"),
        (["--max_length_ratio", "inf"], "max_length_ratio=inf must be a finite number"),
        (["--seed", "-1"], "seed=-1 must be at least 0 and below 2\\^32"),
        (["--seed", "4294967296"], "seed=4294967296 must be at least 0 and below 2\\^32"),
        (
            ["--test_file", "a.en", "a.de"],
            "test_file='a.en a.de' needs train_file: dataset_name='somewhere' has splits",
        ),
        (["--validation_file", "a.tsv"], "validation_file='a.tsv' needs train_file"),
        (["--treebank_made", "5"], "treebank_made=5 needs a treebank: dataset_name=treebank:DIR"),
        (["--metric_for_best_model", "chrf"], "metric_for_best_model='chrf' is .* needs early_stopping_patience"),
        (["--overwrite_output_dir", "--resume_from_checkpoint=latest"], "=True and .*='latest' contradict each other"),
        (["--output_dir", ""], "output_dir= must be the path of a folder"),
        (["--curriculum_epochs", "5"], "curriculum_epochs and curriculum_length must be given together"),
    ],
)
def test_bad_flags_are_one_clear_sentence(flags, message):
    with pytest.raises(UserError, match=message):
        parse_settings([*GIVEN, *flags])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drpout = 0.1\n", "recipe.toml: unknown key 'drpout'"),
        ("warmup_step = 1\n", "the nearest known one is 'warmup_steps'"),
        ("max_steps = 1.5\n", "max_steps.*invalid int value: '1.5'"),
        ("max_steps = \n", "cannot be read: Invalid value"),
        ("seed = [1, 2]\n", r"recipe.toml: seed=\[1, 2\] must be one value, neither a list nor a table$"),
        ("tokenized = []\n", r"recipe.toml: tokenized=\[\] must be one value"),
        ("output_dir = ['a', '--seed', '3']\n", r"recipe.toml: output_dir=\['a', '--seed', '3'\] must be one value"),
        ("output_dir.name = 'a'\n", r"recipe.toml: output_dir=\{'name': 'a'\} must be one value"),
    ],
)
def test_bad_recipes_are_one_clear_sentence(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        parse_settings([recipe(tmp_path, text)])


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(UserError, match=r"absent\.toml cannot be read: No such file or directory$"):
        parse_settings([str(tmp_path / "absent.toml")])


def test_help_shows_how_to_start_from_a_published_model(capsys):
    with pytest.raises(SystemExit):
        parse_settings(["--help"])
    said = capsys.readouterr().out
    example = said.split("Examples:\n")[1].split("accelerate launch training/run.py ")[2]
    assert "--model_name_or_path MODEL_NAME_OR_PATH" in said
    assert parse_settings(example.replace("...", "").split()).model.model_name_or_path == "runs/demo/model"


def test_help_is_grouped_by_owner_and_shows_each_flag_once_with_its_default(capsys):
    with pytest.raises(SystemExit):
        parse_settings(["--help"])
    said = capsys.readouterr().out.split("Examples:\n")[0]
    groups = re.findall(r"^(\w+):$", said, flags=re.MULTILINE)
    assert groups == ["options", "data", "model", "optimization", "run", "reporting"]
    for name in NAMES:
        assert len(re.findall(rf"^  --{name}\b", said, flags=re.MULTILINE)) == 1, name
    assert "--max-steps" not in said
    assert len(re.findall(r"\(default:\s+[^\s)]", said)) == said.count("(default:") > 20
    assert "default: None" not in said
    assert re.search(r"--warmup_steps WARMUP_STEPS\s+Updates of linear warm-up .*\(default:\s+4000\)", said, re.DOTALL)


def test_help_fits_a_terminal_of_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse_settings(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("  --")) <= 80  # a flag and its choices stay whole


def test_flags_may_be_written_with_hyphens():
    assert parse_settings([*GIVEN, "--max-steps", "5"]).optimization.max_steps == 5


def test_keys_of_the_resolved_recipe_are_the_flags(tmp_path):
    settings = parse_settings([*GIVEN, "--max_steps", "5"])
    write_recipe(settings, {}, tmp_path / "recipe.toml")
    written = tomllib.loads((tmp_path / "recipe.toml").read_text(encoding="utf-8"))
    assert written.pop("run") == {}
    assert written == {
        name: value
        for name, value in settings.values().items()
        if value is not None and name not in ("overwrite_output_dir", "resume_from_checkpoint")
    }


def test_a_run_that_was_moved_is_not_begun_anew_where_it_was(tmp_path):
    moved = tmp_path / "my runs"
    (moved / "checkpoints").mkdir(parents=True)
    path = recipe(moved, f'output_dir = "{tmp_path}/before"\n')
    resume = [path, "--resume_from_checkpoint", "latest"]
    with pytest.raises(UserError, match=f"whose checkpoints would not be resumed: add --output_dir '{moved}'$"):
        parse_settings(resume)
    assert parse_settings([*resume, "--output_dir", str(moved)]).run.output_dir == str(moved)
    assert parse_settings([path]).run.output_dir == f"{tmp_path}/before"  # which runs it again
    assert parse_settings([recipe(tmp_path, ""), *resume[1:]]).run.output_dir == "runs/default"  # which is no run's
    moved.rename(tmp_path / "before")
    assert parse_settings([f"{tmp_path}/before/recipe.toml", *resume[1:]]).run.output_dir == f"{tmp_path}/before"
