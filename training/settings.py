"""Every setting of a training run: one dataclass, which makes the flags, the recipes' keys and the resolved recipe.

A recipe is a TOML file of these keys. Where it ``extends`` another recipe, it has the keys of that one too, unless it
gives its own. A flag on the command line wins. One that names another source of text, or a model to start from, also
takes the place of all that a recipe says of the text, or of the config and the vocabulary. Names are those of
transformers' translation examples where they have one.
"""

import argparse
import dataclasses
import difflib
import json
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from transformers import HfArgumentParser

from vaswani.errors import UserError


ROOT = Path(__file__).resolve().parent.parent
DEFAULT_RECIPE = ROOT / "training" / "recipes" / "demo.toml"
DEFAULT_CONFIG, DEFAULT_VOCAB_SIZE = "base-en-de", 37000

# A key of the first kind takes the place of those beside it in a recipe that it is laid over.
TAKES_THE_PLACE_OF = {
    "dataset_name": ("train_file", "validation_file", "test_file"),
    "train_file": ("dataset_name", "dataset_config_name"),
    "model_name_or_path": ("config_name", "tokenizer_name", "vocab_size"),
}

EXAMPLES = """Examples:
  accelerate launch training/run.py training/recipes/demo.toml --max_steps 100
  accelerate launch training/run.py --model_name_or_path runs/demo/model --train_file new.tsv --validation_file dev.tsv
      --source_lang en --target_lang de --max_steps 300 --warmup_steps 50 --learning_rate_factor 0.05 ...
"""


def _setting(help_text: str, **kwargs: Any) -> Any:
    return field(metadata={"help": help_text}, **kwargs)


@dataclass
class TrainingSettings:
    """Settings of a run; units and sources stand in each one's help."""

    # What to read
    dataset_name: str | None = _setting(
        "A dataset of the Hub, a local folder in its layout, or 'grammar': a corpus that this project generates.",
        default=None,
    )
    dataset_config_name: str | None = _setting("The dataset's configuration, such as 'de-en'.", default=None)
    source_lang: str = _setting("Language to translate from: the key or column that holds it.", default="")
    target_lang: str = _setting("Language to translate into.", default="")
    train_file: list[str] | None = _setting(
        "Own training text: a .tsv, .csv, .jsonl, .json or .parquet file, or two aligned text files, source first.",
        default=None,
    )
    validation_file: list[str] | None = _setting("Own validation text, in the same forms.", default=None)
    test_file: list[str] | None = _setting("Own test text, in the same forms.", default=None)
    max_train_samples: int | None = _setting("Use only the first so many training pairs.", default=None)
    max_eval_samples: int | None = _setting("Use only the first so many pairs of validation and test.", default=None)

    # What to keep
    max_source_length: int = _setting(
        "Longest source kept, in tokens with </s> (the original code: 256). Longer ones of validation and test are "
        "translated up to there, and counted.",
        default=256,
    )
    max_target_length: int = _setting("Longest target kept, in tokens with </s>.", default=256)
    max_length_ratio: float = _setting(
        "Drop pairs one side of which has more than so many times the tokens of the other (Moses' cleaner: 9).",
        default=9.0,
    )

    # What to train
    model_name_or_path: str | None = _setting(
        "A published model to start from: a folder or a Hub id with config, tokenizer and weights; none means new "
        "weights. Adam and the schedule begin anew, so set warmup_steps and learning_rate_factor for it.",
        default=None,
    )
    config_name: str | None = _setting(
        "A folder of hub_configs/, a path or a Hub id with a config.json; none means base-en-de, or the config of "
        "model_name_or_path.",
        default=None,
    )
    tokenizer_name: str | None = _setting(
        "A tokenizer to use; none means that of model_name_or_path, or to train one.", default=None
    )
    vocab_size: int | None = _setting(
        "Types of the shared vocabulary to train; none means 37,000 (section 5.1), or those of model_name_or_path.",
        default=None,
    )

    # How to train (sections 5.1-5.4)
    output_dir: str = _setting("Where everything that the run makes goes.", default="runs/default")
    overwrite_output_dir: bool = _setting("Whether to replace a run that output_dir already holds.", default=False)
    max_steps: int = _setting("Optimizer updates (section 5.2: 100,000 for base).", default=100_000)
    max_tokens_per_batch: int = _setting(
        "Real tokens of an update over all processes, on either side (section 5.1: 25,000).", default=25_000
    )
    length_groups: int = _setting(
        "Groups of similar length that an update is made of (section 5.1: 1; the original code: one a GPU, 8). More "
        "mix the lengths and need less padding, but are smaller.",
        default=1,
    )
    max_tokens_per_device: int = _setting(
        "Positions, padding included, that a device computes at a time, on either side; bounds its memory. An update "
        "that has more is accumulated.",
        default=8192,
    )
    warmup_steps: int = _setting("Updates of linear warm-up (section 5.3: 4,000).", default=4000)
    learning_rate_factor: float = _setting("Factor on Eq. 3 of section 5.3.", default=1.0)
    adam_beta1: float = _setting("Adam's first decay (section 5.3).", default=0.9)
    adam_beta2: float = _setting("Adam's second decay (section 5.3).", default=0.98)
    adam_epsilon: float = _setting("Adam's epsilon (section 5.3).", default=1e-9)
    label_smoothing: float = _setting("Mass taken from the target and spread over the rest (5.4).", default=0.1)
    mixed_precision: Literal["no", "bf16", "fp16"] | None = _setting(
        "Precision of matrix products; none means what accelerate is configured for.", default=None
    )
    attn_implementation: str = _setting(
        "Attention of transformers to train with: 'sdpa', 'eager' (faster on a processor with short sentences), ...",
        default="sdpa",
    )
    tf32: bool = _setting("Whether float32 matrix products may use TensorFloat-32 on a GPU.", default=False)
    torch_compile: bool = _setting("Whether to compile the model (for GPUs; slower on processors).", default=False)
    dataloader_num_workers: int | None = _setting(
        "Processes that load batches for each training process; none means 2 beside a GPU, else 0.", default=None
    )
    seed: int = _setting("Seed of initialization, order and dropout.", default=2017)

    # When to stop
    max_time: float | None = _setting(
        "Minutes after which the run saves a checkpoint and ends, to be resumed: for clusters.", default=None
    )
    early_stopping_patience: int | None = _setting(
        "Stop after so many evaluations on validation without a better metric_for_best_model.", default=None
    )
    metric_for_best_model: Literal["nll", "sacrebleu", "sacrebleu_lowercased", "chrf"] = _setting(
        "What early stopping looks at: lower is better for nll, higher for the others.", default="nll"
    )
    resume_from_checkpoint: str | None = _setting(
        "Go on from a checkpoint of output_dir: its path, or 'latest' for the newest good one.", default=None
    )

    # What to report
    logging_steps: int = _setting("Updates between two log rows.", default=100)
    eval_steps: int = _setting("Updates between two evaluations on validation; 0 means at the end only.", default=5000)
    save_steps: int = _setting("Updates between two checkpoints; 0 means none.", default=1500)
    save_minutes: float = _setting(
        "Minutes between two checkpoints, instead of save_steps (section 6.1: 10); 0 means save_steps.", default=0.0
    )
    save_total_limit: int | None = _setting("Keep only so many of the newest checkpoints.", default=None)
    average_checkpoints: int = _setting(
        "Publish the average of so many of the last checkpoints (section 6.1: 5 for base, 20 for big); 1 for none.",
        default=1,
    )
    report_to: str = _setting(
        "A tracker that accelerate knows, such as 'tensorboard'; 'none' for none.", default="none"
    )
    push_to_hub: bool = _setting("Whether to send the published folder to the Hub.", default=False)
    hub_model_id: str | None = _setting("Its name there; none means that of output_dir.", default=None)

    def __post_init__(self) -> None:
        if self.model_name_or_path is None:
            self.config_name = DEFAULT_CONFIG if self.config_name is None else self.config_name
            self.vocab_size = DEFAULT_VOCAB_SIZE if self.vocab_size is None else self.vocab_size
        for name in ("train_file", "validation_file", "test_file"):
            files = getattr(self, name)
            if files is not None:
                files = [files] if isinstance(files, str) else files
                setattr(self, name, [part for entry in files for part in entry.split(",") if part])

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the run saves checkpoints on its way."""
        return bool(self.save_steps or self.save_minutes or self.early_stopping_patience)

    def validate(self) -> None:
        """Check what can be checked before any data is read.

        Raises
        ------
        UserError
            Naming the setting, its value and what is allowed.
        """
        self._validate_data()
        self._validate_checkpoints()
        steps = ("max_steps", "warmup_steps", "logging_steps", "max_tokens_per_batch", "average_checkpoints")
        self._require((*steps, "length_groups"), lambda value: value >= 1, "at least 1")
        self._require(("vocab_size",), lambda value: value is None or value >= 1, "at least 1")
        self._require(("eval_steps", "save_steps", "save_minutes"), lambda value: value >= 0, "at least 0")
        self._require(("max_time",), lambda value: value is None or value > 0, "above 0 minutes")
        self._require(("early_stopping_patience",), lambda value: value is None or value >= 1, "at least 1")
        self._require(("dataloader_num_workers",), lambda value: value is None or value >= 0, "at least 0")
        self._require(("max_source_length", "max_target_length"), lambda value: value >= 2, "at least 2: one and </s>")
        self._require(("label_smoothing", "adam_beta1", "adam_beta2"), lambda value: 0 <= value < 1, "in [0, 1)")
        self._require(("learning_rate_factor", "adam_epsilon"), lambda value: value > 0, "above 0")
        self._require(("max_length_ratio",), lambda value: value > 1, "above 1")
        for budget in ("max_tokens_per_batch", "max_tokens_per_device"):
            for name in ("max_source_length", "max_target_length"):
                if getattr(self, name) > getattr(self, budget):
                    raise UserError(
                        f"{budget}={getattr(self, budget)} must hold the longest sentence that is kept, "
                        f"but {name}={getattr(self, name)}"
                    )

    def _require(self, names: Iterable[str], allowed: Callable[[Any], bool], rule: str) -> None:
        for name in names:
            if not allowed(getattr(self, name)):
                raise UserError(f"{name}={getattr(self, name)} must be {rule}")

    def _validate_data(self) -> None:
        for name in ("source_lang", "target_lang"):
            if not getattr(self, name):
                raise UserError(f"{name} is missing: name the language, as --{name} en")
        if self.source_lang == self.target_lang:
            raise UserError(f"source_lang and target_lang are both {self.source_lang!r}: they must differ")
        if (self.dataset_name is None) == (self.train_file is None):
            raise UserError("exactly one of dataset_name and train_file must be given: where is the training text?")
        if self.train_file is not None and self.validation_file is None:
            raise UserError("validation_file is missing: train_file needs one beside it")

    def _validate_checkpoints(self) -> None:
        if self.early_stopping_patience is not None and self.eval_steps == 0:
            raise UserError(
                f"early_stopping_patience={self.early_stopping_patience} needs eval_steps of at least 1, but it is 0"
            )
        made = -(-self.max_steps // self.save_steps) if self.save_steps > 0 else 0  # the last update is saved too
        if self.average_checkpoints > max(1, made) and not self.save_minutes:
            raise UserError(
                f"average_checkpoints={self.average_checkpoints} must be at most the {made} checkpoints that "
                f"max_steps={self.max_steps} and save_steps={self.save_steps} make"
            )
        limit = self.save_total_limit
        if limit is not None and limit < max(1, self.average_checkpoints):
            raise UserError(
                f"save_total_limit={limit} must be at least 1 and average_checkpoints={self.average_checkpoints}"
            )


NAMES = [setting.name for setting in dataclasses.fields(TrainingSettings)]


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows the default of each flag, and the examples as they are."""


def parse_settings(arguments: list[str]) -> TrainingSettings:
    """Read ``[RECIPE.toml] [--flag value ...]``; with no arguments at all, the demo's recipe.

    Raises
    ------
    UserError
        If the recipe cannot be read, a key or flag is unknown (with the nearest known one), or a value is not allowed.
    """
    if not arguments:
        arguments = [str(DEFAULT_RECIPE)]
    if not arguments[0].startswith("-"):
        arguments = read_recipe(Path(arguments[0]), arguments[1:]) + arguments[1:]
    parser = HfArgumentParser(
        TrainingSettings,
        prog="training/run.py",
        usage="accelerate launch %(prog)s [RECIPE.toml] [--flag value ...]",
        description="Train, evaluate and publish a Transformer. Every flag can stand in the recipe too; flags win.",
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.error = _raise_user_error
    known, unknown = parser.parse_known_args(arguments)
    for argument in unknown:
        raise UserError(describe_unknown("flag", argument.split("=")[0]))
    settings = TrainingSettings(**vars(known))
    settings.validate()
    return settings


def _raise_user_error(message: str) -> NoReturn:
    raise UserError(message)


def describe_unknown(kind: str, name: str, known: Iterable[str] = NAMES) -> str:
    """Say that a name is unknown, and which known one is nearest."""
    return f"unknown {kind} {name!r}: the nearest known one is {nearest(name.removeprefix('--'), known)!r}"


def names_of(flags: Iterable[str]) -> list[str]:
    """Return the names of the settings that flags give, such as "seed" of ``--seed=1`` or ``--seed 1``."""
    return [flag.removeprefix("--").split("=")[0].replace("-", "_") for flag in flags if flag.startswith("--")]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like this one."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0)[0]


def read_recipe(path: Path, flags: Iterable[str] = ()) -> list[str]:
    """Read a recipe as flags, except for the keys whose place `flags` take.

    Its ``[run]`` table is what an earlier run noted of itself, and is skipped.
    """
    arguments = []
    for name, value in what_remains(load_recipe(path), names_of(flags)).items():
        arguments += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return arguments


def what_remains(recipe: dict[str, Any], given: Iterable[str]) -> dict[str, Any]:
    """Return a recipe without the keys whose place the given ones take."""
    replaced = {name for key in given for name in TAKES_THE_PLACE_OF.get(key, ())}
    return {name: value for name, value in recipe.items() if name not in replaced}


def load_recipe(path: Path, *extended_by: Path) -> dict[str, Any]:
    """Read the keys of a recipe, over those of the recipe that it ``extends``: a path from its own folder."""
    path = path.resolve()
    if path in extended_by:
        raise UserError(f"the recipe {path} extends itself")
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"the recipe {path} cannot be read: {error}") from error
    recipe.pop("run", None)
    origin = recipe.pop("extends", None)
    for name in recipe:
        if name not in NAMES:
            raise UserError(f"{path}: " + describe_unknown("key", name))
    if origin is None:
        return recipe
    return what_remains(load_recipe(path.parent / origin, path, *extended_by), recipe) | recipe


def write_recipe(settings: TrainingSettings, run: dict[str, Any], path: Path) -> None:
    """Write the resolved recipe, which can be run again, and what is known of the run into its ``[run]`` table."""
    lines = ["# The resolved recipe of this run: training/run.py can run it again.", ""]
    once = ("overwrite_output_dir", "resume_from_checkpoint")  # these concern one start of the run
    given = {name: value for name, value in vars(settings).items() if value is not None and name not in once}
    lines += [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    lines += ["", "[run]", *(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in run.items()), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
