import dataclasses

import pytest

from training.settings import (
    DataSettings,
    ModelSettings,
    OptimizationSettings,
    ReportingSettings,
    RunSettings,
    TrainingSettings,
)
from vaswani.errors import UserError


PARTS = (DataSettings, ModelSettings, OptimizationSettings, RunSettings, ReportingSettings)
DATA = DataSettings(dataset_name="somewhere", source_lang="en", target_lang="de")


def settings(**parts):
    return TrainingSettings(**{"data": dataclasses.replace(DATA)} | parts)


def test_every_setting_has_its_help_and_one_owner():
    fields = [field for part in PARTS for field in dataclasses.fields(part)]
    assert all(field.metadata["help"].endswith(".") for field in fields)
    names = [field.name for field in fields]
    assert len(set(names)) == len(names)
    assert list(TrainingSettings().values()) == names


def test_a_parser_has_no_space():
    data = dataclasses.replace(DATA, target_lang="tree")
    with pytest.raises(UserError, match=r"^space=True needs a model that translates, but target_lang='tree'$"):
        settings(data=data, reporting=ReportingSettings(space=True)).validate()
    with pytest.raises(UserError, match=r"^tokenized=True is for translations, but target_lang='tree'$"):
        settings(data=dataclasses.replace(data, tokenized=True)).validate()


def test_the_defaults_are_allowed():
    settings().validate()


# A value that is not allowed and, where there is one, its neighbour that is.
LIMITS = {
    "max_train_samples": (0, 1),
    "max_eval_samples": (0, 1),
    "max_source_length": (1, 2),
    "max_target_length": (1, 2),
    "max_length_ratio": (1.0, 1.01),
    "treebank_parts": (-1, 0),
    "treebank_made": (-1, 0),
    "curriculum_epochs": (0, None),
    "curriculum_length": (1, None),
    "vocab_size": (0, 1),
    "max_steps": (0, None),
    "max_tokens_per_batch": (0, None),
    "length_groups": (0, 1),
    "max_tokens_per_device": (0, None),
    "warmup_steps": (0, 1),
    "learning_rate_factor": (0.0, 1e-9),
    "adam_epsilon": (0.0, 1e-30),
    "max_grad_norm": (0.0, 0.1),
    "weight_decay": (0.0, 0.1),
    "rdrop_alpha": (0.0, 0.1),
    "logging_steps": (0, 1),
    "eval_steps": (-1, 0),
    "save_steps": (-1, 0),
    "save_minutes": (-0.1, 0.1),
    "max_time": (0.0, 0.1),
    "early_stopping_patience": (0, 1),
    "dataloader_num_workers": (-1, 0),
    "average_checkpoints": (0, 1),
    "save_total_limit": (0, 1),
}
LIMITS_OF_FRACTIONS = dict.fromkeys(("label_smoothing", "adam_beta1", "adam_beta2"), (1.0, 0.999)) | {
    "bpe_dropout": (1.0, 0.999)
}


@pytest.mark.parametrize(("name", "values"), [*LIMITS.items(), *LIMITS_OF_FRACTIONS.items()])
def test_each_limit_is_where_its_rule_says(name, values):
    owner = next(part for part in PARTS if name in part.__dataclass_fields__)
    refused, allowed = values
    given = settings()
    part = getattr(given, owner._argument_group_name)
    if allowed is not None:
        setattr(part, name, allowed)
        given.validate()
    for value in (refused, float("nan")) if isinstance(refused, float) else (refused,):
        setattr(part, name, value)
        with pytest.raises(UserError, match=f"^{name}={value} must be "):
            given.validate()


@pytest.mark.parametrize(
    ("max_steps", "save_steps", "average", "is_allowed"),
    [(10, 5, 2, True), (11, 5, 3, True), (10, 5, 3, False), (11, 5, 4, False), (4, 5, 1, True), (10, 0, 1, True)],
)
def test_there_must_be_as_many_checkpoints_as_are_averaged(max_steps, save_steps, average, is_allowed):
    given = settings(
        optimization=OptimizationSettings(max_steps=max_steps),
        run=RunSettings(save_steps=save_steps, average_checkpoints=average),
    )
    if is_allowed:
        given.validate()
    else:
        with pytest.raises(UserError, match=f"average_checkpoints={average} must be at most the {average - 1} check"):
            given.validate()
        given.run.save_minutes = 1.0
        given.validate()


@pytest.mark.parametrize("budget", ["max_tokens_per_batch", "max_tokens_per_device"])
@pytest.mark.parametrize("length", ["max_source_length", "max_target_length"])
def test_a_budget_must_hold_the_longest_sentence(budget, length):
    given = settings(data=dataclasses.replace(DATA, **{length: 300}))
    setattr(given.optimization, budget, 300)
    given.validate()
    setattr(given.optimization, budget, 299)
    with pytest.raises(UserError, match=f"{budget}=299 must hold the longest sentence that is kept, but {length}=300"):
        given.validate()


def test_r_drop_needs_room_for_each_sentence_twice():
    given = settings(data=dataclasses.replace(DATA, max_source_length=200))
    given.optimization.rdrop_alpha, given.optimization.max_tokens_per_device = 5.0, 512
    given.validate()
    given.optimization.max_tokens_per_device = 511
    with pytest.raises(
        UserError, match="must hold the longest sentence that is kept twice, for R-Drop, but max_target"
    ):
        given.validate()


def test_the_evaluation_of_early_stopping_may_be_the_last_update():
    given = settings(run=RunSettings(early_stopping_patience=1, eval_steps=1500, save_steps=0))
    given.optimization.max_steps = 1500
    given.validate()
    given.optimization.max_steps = 1499
    with pytest.raises(UserError, match="eval_steps=1500 must be at most max_steps=1499"):
        given.validate()


def test_a_recipe_of_before_has_the_default_size_beside_a_tokenizer():
    assert ModelSettings(tokenizer_name="t", vocab_size=37000).vocab_size is None
    assert ModelSettings(tokenizer_name="t", vocab_size=36999).vocab_size == 36999


def test_a_model_to_start_from_brings_its_own_config_and_vocabulary():
    assert (ModelSettings().config_name, ModelSettings().vocab_size) == ("base-en-de", 37000)
    started = ModelSettings(model_name_or_path="m")
    assert (started.config_name, started.vocab_size) == (None, None)


@pytest.mark.parametrize(
    ("given", "keeps"),
    [({}, True), ({"save_steps": 0}, False), ({"save_steps": 0, "save_minutes": 1.0}, True),
     ({"save_steps": 0, "early_stopping_patience": 2}, True)],
)  # fmt: skip
def test_whether_a_run_keeps_checkpoints(given, keeps):
    assert RunSettings(**given).keeps_checkpoints is keeps
