"""Every setting of a training run, by owner: data, model, optimization, run and reporting.

A part of the code takes the part of the settings that it needs. The fields are the flags of training/run.py and the
keys of its recipes (`training.recipe`); each one's rule stands beside it. Names are those of transformers' translation
examples where they have one.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_type_hints

from vaswani.errors import UserError
from vaswani.models.trees_vaswani import TREES
from vaswani.parsing.treebank import PREFIX


ROOT = Path(__file__).resolve().parent.parent
DEFAULT_CONFIG, DEFAULT_VOCAB_SIZE = "base-en-de", 37000
GRAMMAR = "grammar"  # the dataset that this project generates


class Rule(NamedTuple):
    """A test of a value, and its rule in words."""

    allows: Callable[[Any], bool]
    text: str


AT_LEAST_0 = Rule(lambda value: value >= 0, "at least 0")
NONE_OR_AT_LEAST_2 = Rule(lambda value: value == 0 or value >= 2, "0, or at least 2 words")
AT_LEAST_1 = Rule(lambda value: value >= 1, "at least 1")
AT_LEAST_2 = Rule(lambda value: value >= 2, "at least 2: one and </s>")
ABOVE_0 = Rule(lambda value: value > 0, "above 0")
ABOVE_0_MINUTES = Rule(lambda value: value > 0, "above 0 minutes")
ABOVE_1 = Rule(lambda value: value > 1, "above 1")
NOT_EMPTY = Rule(bool, "the path of a folder")
SEED = Rule(lambda value: 0 <= value < 2**32, "at least 0 and below 2^32")
ABOVE_0_BELOW_1 = Rule(lambda value: 0 < value < 1, "above 0 and below 1")
FRACTION = Rule(lambda value: 0 <= value < 1, "in [0, 1)")


def check_rules(settings: Any) -> None:
    """Refuse a field that breaks the rule in its annotation; None is allowed where the field may be None."""
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name}={value} must be a finite number")
        for rule in getattr(hint, "__metadata__", ()):
            if value is not None and not rule.allows(value):
                raise UserError(f"{name}={value} must be {rule.text}")


def has_configurations(dataset_name: str | None) -> bool:
    """Return whether this is a dataset of the Hub or in its layout, which alone have configurations."""
    return dataset_name not in (None, GRAMMAR) and not str(dataset_name).startswith(PREFIX)


def _setting(help_text: str, **kwargs: Any) -> Any:
    return field(metadata={"help": help_text}, **kwargs)


@dataclass
class DataSettings:
    """The parallel text, and which pairs of it are kept."""

    _argument_group_name: ClassVar[str] = "data"

    dataset_name: str | None = _setting(
        "A dataset of the Hub, a local folder in its layout, 'grammar' (a corpus that this project generates) or "
        "treebank:DIR (a folder of trees).",
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
    tokenized: bool = _setting(
        "Whether the text was tokenized before, as by training/preprocess.py: BLEU counts its tokens as they are.",
        default=False,
    )
    max_train_samples: Annotated[int | None, AT_LEAST_1] = _setting(
        "Use only the first N training pairs.", default=None
    )
    max_eval_samples: Annotated[int | None, AT_LEAST_1] = _setting(
        "Use only the first N pairs of validation and test.", default=None
    )
    max_source_length: Annotated[int, AT_LEAST_2] = _setting(
        "Longest source kept, in tokens with </s> (the original code: 256). Longer ones of validation and test are "
        "translated up to there, and counted.",
        default=256,
    )
    max_target_length: Annotated[int, AT_LEAST_2] = _setting("Longest target kept, in tokens with </s>.", default=256)
    max_length_ratio: Annotated[float, ABOVE_1] = _setting(
        "Drop pairs of which one side has more than N times the tokens of the other (Moses' cleaner: 9).",
        default=9.0,
    )
    bpe_dropout: Annotated[float | None, ABOVE_0_BELOW_1] = _setting(
        "Probability of leaving out a merge wherever a word of the training text is divided, anew in each epoch "
        "(Provilkov et al. 2020: 0.1); none means never, as in the paper. Sentences become a quarter longer.",
        default=None,
    )
    treebank_parts: Annotated[int | None, NONE_OR_AT_LEAST_2] = _setting(
        "Of a treebank: train also on the constituents that have 2 to N words, as trees of their own.", default=None
    )
    treebank_made: Annotated[int | None, AT_LEAST_0] = _setting(
        "Of a treebank: train also on N trees in which constituents stand in the place of others of their kind.",
        default=None,
    )

    def validate(self) -> None:
        """Refuse what is not allowed, as far as it shows before any data is read."""
        check_rules(self)
        for name in ("source_lang", "target_lang"):
            if not getattr(self, name):
                raise UserError(f"{name} is missing: name the language, as --{name} en")
        if self.source_lang == self.target_lang:
            raise UserError(f"source_lang and target_lang are both {self.source_lang!r}: they must differ")
        if (self.dataset_name is None) == (self.train_file is None):
            raise UserError("exactly one of dataset_name and train_file must be given: where is the training text?")
        if self.train_file is not None and self.validation_file is None:
            raise UserError("validation_file is missing: train_file needs one beside it")
        if self.dataset_config_name is not None and not has_configurations(self.dataset_name):
            files = " ".join(self.train_file or [])
            given = f"train_file={files!r}" if files else f"dataset_name={self.dataset_name!r}"
            raise UserError(
                f"dataset_config_name={self.dataset_config_name!r} must be left out: {given} has no configurations"
            )
        for name in ("validation_file", "test_file"):
            if self.dataset_name is not None and getattr(self, name) is not None:
                raise UserError(
                    f"{name}={' '.join(getattr(self, name))!r} needs train_file: dataset_name={self.dataset_name!r} "
                    "has splits of its own"
                )
        for name in ("treebank_parts", "treebank_made"):
            if getattr(self, name) and not str(self.dataset_name).startswith(PREFIX):
                raise UserError(f"{name}={getattr(self, name)} needs a treebank: dataset_name={PREFIX}DIR")


@dataclass
class ModelSettings:
    """The model and its vocabulary: new, or a published one to start from."""

    _argument_group_name: ClassVar[str] = "model"

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
    vocab_size: Annotated[int | None, AT_LEAST_1] = _setting(
        "Types of the shared vocabulary to train; none means 37,000 (section 5.1), or those of tokenizer_name or "
        "model_name_or_path.",
        default=None,
    )

    def __post_init__(self) -> None:
        if self.model_name_or_path is None:
            self.config_name = DEFAULT_CONFIG if self.config_name is None else self.config_name
            if self.tokenizer_name is None and self.vocab_size is None:
                self.vocab_size = DEFAULT_VOCAB_SIZE
            if self.tokenizer_name is not None and self.vocab_size == DEFAULT_VOCAB_SIZE:
                self.vocab_size = None  # recipes of earlier runs have the default beside any tokenizer


@dataclass
class OptimizationSettings:
    """Updates: their batches, rate, optimizer and loss (sections 5.1 to 5.4)."""

    _argument_group_name: ClassVar[str] = "optimization"

    max_steps: Annotated[int, AT_LEAST_1] = _setting(
        "Optimizer updates (section 5.2: 100,000 for base).", default=100_000
    )
    max_tokens_per_batch: Annotated[int, AT_LEAST_1] = _setting(
        "Real tokens of an update over all processes, on either side (section 5.1: 25,000).", default=25_000
    )
    length_groups: Annotated[int, AT_LEAST_1] = _setting(
        "Groups of similar length that an update is made of (section 5.1: 1; the original code: one per GPU, 8). More "
        "mix the lengths and need less padding, but are smaller; no more are made than can hold the longest pair.",
        default=1,
    )
    max_tokens_per_device: Annotated[int, AT_LEAST_1] = _setting(
        "Positions, padding included, that a device computes at a time, on either side; bounds its memory. An update "
        "that has more is accumulated.",
        default=8192,
    )
    curriculum_epochs: Annotated[int | None, AT_LEAST_1] = _setting(
        "The first N epochs have only the pairs that curriculum_length allows.", default=None
    )
    curriculum_length: Annotated[int | None, AT_LEAST_2] = _setting(
        "Longest pairs of those epochs, in tokens of the longer side with </s>.", default=None
    )
    warmup_steps: Annotated[int, AT_LEAST_1] = _setting(
        "Updates of linear warm-up (section 5.3: 4,000).", default=4000
    )
    learning_rate_factor: Annotated[float, ABOVE_0] = _setting("Factor on Eq. 3 of section 5.3.", default=1.0)
    adam_beta1: Annotated[float, FRACTION] = _setting("Adam's first decay (section 5.3).", default=0.9)
    adam_beta2: Annotated[float, FRACTION] = _setting("Adam's second decay (section 5.3).", default=0.98)
    adam_epsilon: Annotated[float, ABOVE_0] = _setting("Adam's epsilon (section 5.3).", default=1e-9)
    max_grad_norm: Annotated[float | None, ABOVE_0] = _setting(
        "Shrink an update's gradient to this norm if its own is larger; none means never, as in the paper. Recurrent "
        "models need it (Sutskever et al. 2014: 5).",
        default=None,
    )
    weight_decay: Annotated[float | None, ABOVE_0] = _setting(
        "Take N times the learning rate of each matrix away at each update (Loshchilov and Hutter 2019); none means "
        "nothing, as in the paper.",
        default=None,
    )
    label_smoothing: Annotated[float, FRACTION] = _setting(
        "Mass taken from the target and spread over the rest (5.4).", default=0.1
    )
    rdrop_alpha: Annotated[float | None, ABOVE_0] = _setting(
        "Weight of R-Drop (Liang et al. 2021: 5): each batch is computed twice, with other dropout, and the two "
        "predictions are drawn together; none means once, as in the paper.",
        default=None,
    )
    seed: Annotated[int, SEED] = _setting("Seed of initialization, order and dropout.", default=2017)

    @property
    def tokens_of_pairs_per_device(self) -> int:
        """Positions of the pairs that a device computes at a time: R-Drop computes each twice."""
        return self.max_tokens_per_device if self.rdrop_alpha is None else self.max_tokens_per_device // 2


@dataclass
class RunSettings:
    """How the run goes: where, on what, how it is saved, when it ends."""

    _argument_group_name: ClassVar[str] = "run"

    output_dir: Annotated[str, NOT_EMPTY] = _setting(
        "Where everything that the run makes goes.", default="runs/default"
    )
    overwrite_output_dir: bool = _setting("Whether to replace a run that output_dir already holds.", default=False)
    resume_from_checkpoint: str | None = _setting(
        "Resume from a checkpoint of output_dir: its path, or 'latest' for the newest good one.", default=None
    )
    mixed_precision: Literal["no", "bf16", "fp16"] | None = _setting(
        "Precision of matrix products; none means what accelerate is configured for.", default=None
    )
    attn_implementation: str = _setting(
        "Attention of transformers to train with: 'sdpa', 'eager' (faster on CPUs with short sentences), ...; where "
        "kernels in C compute between products, on a CPU, they do it; where nothing is padded, on a GPU, those in "
        "Triton do.",
        default="sdpa",
    )
    tf32: bool = _setting("Whether float32 matrix products may use TensorFloat-32 on a GPU.", default=False)
    torch_compile: bool = _setting(
        "Whether to compile a model that is padded on a GPU (slower on CPUs).", default=False
    )
    dataloader_num_workers: Annotated[int | None, AT_LEAST_0] = _setting(
        "Processes that load batches for each training process; none means 2 beside a GPU, else 0.", default=None
    )
    max_time: Annotated[float | None, ABOVE_0_MINUTES] = _setting(
        "Minutes after which the run saves a checkpoint and ends, to be resumed: for clusters.", default=None
    )
    eval_steps: Annotated[int, AT_LEAST_0] = _setting(
        "Updates between two evaluations on validation; 0 means at the end only.", default=5000
    )
    early_stopping_patience: Annotated[int | None, AT_LEAST_1] = _setting(
        "Stop after N evaluations on validation without a better metric_for_best_model.", default=None
    )
    metric_for_best_model: Literal["nll", "sacrebleu", "sacrebleu_lowercased", "chrf", "bracketing_f1"] = _setting(
        "The measure of early stopping: lower is better for nll, higher for the others. bracketing_f1 is of parses, "
        "those before it are of translations.",
        default="nll",
    )
    save_steps: Annotated[int, AT_LEAST_0] = _setting("Updates between two checkpoints; 0 means none.", default=1500)
    save_minutes: Annotated[float, AT_LEAST_0] = _setting(
        "Minutes between two checkpoints, instead of save_steps (section 6.1: 10); 0 means save_steps.", default=0.0
    )
    save_total_limit: Annotated[int | None, AT_LEAST_1] = _setting("Keep only the N newest checkpoints.", default=None)
    average_checkpoints: Annotated[int, AT_LEAST_1] = _setting(
        "Publish the average of the last N checkpoints (section 6.1: 5 for base, 20 for big); 1 for none.",
        default=1,
    )

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the run saves checkpoints on its way."""
        return bool(self.save_steps or self.save_minutes or self.early_stopping_patience)

    @property
    def grammar_folder(self) -> Path:
        """Where the grammar writes its corpus, if that is the dataset."""
        return Path(self.output_dir) / "corpus"

    def validate(self) -> None:
        """Refuse settings that do not go together."""
        check_rules(self)
        if self.early_stopping_patience is not None and self.eval_steps == 0:
            raise UserError(
                f"early_stopping_patience={self.early_stopping_patience} needs eval_steps of at least 1, but it is 0"
            )
        if self.early_stopping_patience is None and self.metric_for_best_model != "nll":
            raise UserError(
                f"metric_for_best_model={self.metric_for_best_model!r} is the measure of early stopping: it needs "
                "early_stopping_patience beside it"
            )
        if self.overwrite_output_dir and self.resume_from_checkpoint is not None:
            raise UserError(
                f"overwrite_output_dir=True and resume_from_checkpoint={self.resume_from_checkpoint!r} contradict "
                "each other: leave one of them out"
            )
        if self.save_total_limit is not None and self.save_total_limit < self.average_checkpoints:
            raise UserError(
                f"save_total_limit={self.save_total_limit} must be at least 1 and "
                f"average_checkpoints={self.average_checkpoints}"
            )


@dataclass
class ReportingSettings:
    """Who is told."""

    _argument_group_name: ClassVar[str] = "reporting"

    logging_steps: Annotated[int, AT_LEAST_1] = _setting(
        "Updates between two log rows; with early_stopping_patience, each evaluation has one too.", default=100
    )
    report_to: str = _setting(
        "A tracker that accelerate knows, such as 'tensorboard'; 'none' for none.", default="none"
    )
    space: bool = _setting(
        "Whether to write space/ too: a ready Space of the Hugging Face Hub that serves the model.", default=False
    )
    push_to_hub: bool = _setting("Whether to send the published folder to the Hub.", default=False)
    hub_model_id: str | None = _setting("Its name there; none means that of output_dir.", default=None)


@dataclass
class TrainingSettings:
    """All settings of a run; units and sources stand in each one's help."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimization: OptimizationSettings = field(default_factory=OptimizationSettings)
    run: RunSettings = field(default_factory=RunSettings)
    reporting: ReportingSettings = field(default_factory=ReportingSettings)

    @property
    def model_name(self) -> str:
        """What the model is called on the Hub and in its card."""
        return self.reporting.hub_model_id or Path(self.run.output_dir).resolve().name

    def values(self) -> dict[str, Any]:
        """Return every setting by its name."""
        return {name: value for part in asdict(self).values() for name, value in part.items()}

    def validate(self) -> None:
        """Refuse what is not allowed, as far as it shows before any data is read."""
        self.data.validate()
        self.run.validate()
        for part in (self.model, self.optimization, self.reporting):
            check_rules(part)
        if (self.optimization.curriculum_epochs is None) != (self.optimization.curriculum_length is None):
            raise UserError("curriculum_epochs and curriculum_length must be given together, or neither of them")
        steps, run = self.optimization.max_steps, self.run
        if run.early_stopping_patience is not None and run.eval_steps > steps:
            raise UserError(
                f"early_stopping_patience={run.early_stopping_patience} needs an evaluation on the way: "
                f"eval_steps={run.eval_steps} must be at most max_steps={steps}"
            )
        metric, of_trees = run.metric_for_best_model, self.data.target_lang == TREES
        if self.data.tokenized and of_trees:
            raise UserError("tokenized=True is for translations, but target_lang='tree'")
        if self.reporting.space and of_trees:
            raise UserError("space=True needs a model that translates, but target_lang='tree'")
        if metric != "nll" and (metric == "bracketing_f1") != of_trees:
            raise UserError(f"metric_for_best_model={metric!r} is no measure of target_lang={self.data.target_lang!r}")
        made = math.ceil(steps / run.save_steps) if run.save_steps else 0  # the last update is saved too
        if run.average_checkpoints > max(1, made) and not run.save_minutes:
            raise UserError(
                f"average_checkpoints={run.average_checkpoints} must be at most the {made} checkpoints that "
                f"max_steps={steps} and save_steps={run.save_steps} make"
            )
        for budget in ("max_tokens_per_batch", "max_tokens_per_device"):
            room, twice = getattr(self.optimization, budget), ""
            if budget == "max_tokens_per_device" and self.optimization.rdrop_alpha is not None:
                twice = " twice, for R-Drop"
            for name in ("max_source_length", "max_target_length"):
                longest = getattr(self.data, name)
                if longest * (2 if twice else 1) > room:
                    raise UserError(
                        f"{budget}={room} must hold the longest sentence that is kept{twice}, but {name}={longest}"
                    )
