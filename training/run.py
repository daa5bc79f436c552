"""Train the Transformer as section 5 of the paper says, evaluate it, and publish it as a model folder.

accelerate launch training/run.py
accelerate launch training/run.py training/recipes/multi30k-en-de.toml --output_dir runs/mine --max_steps 1000
accelerate launch training/run.py runs/mine/recipe.toml --resume_from_checkpoint latest
accelerate launch training/run.py --model_name_or_path runs/mine/model --output_dir runs/adapted ...
accelerate launch training/run.py --help
"""

import os
import shlex
import shutil
import signal
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import NoReturn

from vaswani.cli.shared.startup import large_imports


with large_imports():
    import torch
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs, set_seed
    from transformers.utils.logging import disable_progress_bar

    from training.checkpoints.fingerprint import run_fingerprint
    from training.checkpoints.manager import CheckpointManager
    from training.data.bpe_dropout import DroppingEncoder
    from training.data.loader import curriculum
    from training.data.preparation import Prepared, describe_counts, lengths, prepare
    from training.machine import usable_cores
    from training.publishing.folder import publish
    from training.publishing.hub import open_repository, push
    from training.recipe import parse_settings
    from training.reports.records import read_runs
    from training.settings import TrainingSettings
    from training.trainer.base_model import load_base_model
    from training.trainer.logbook import Logbook, describe_training
    from training.trainer.loop import TrainingLoop
    from training.trainer.model import build_model, check_attention, check_dropout, check_lengths, load_config
    from training.trainer.run_directory import claim_output_dir
    from vaswani.demo.space import write_space
    from vaswani.errors import UserError
    from vaswani.evaluation import check_is_scored
    from vaswani.interruption import Interrupted
    from vaswani.models.packing_vaswani import multiplies_bfloat16
    from vaswani.models.translator_vaswani import TranslatorForConditionalGeneration
    from vaswani.models.trees_vaswani import TREES
    from vaswani.workers import keep_freed_memory


def main(arguments: list[str]) -> None:
    """Go the whole way: text, ids, batches, loss, checkpoints, published folder."""
    disable_progress_bar()  # transformers' own, at every save; the run's stays
    settings = parse_settings(arguments)
    base_model, origin = (None, {}) if settings.model.model_name_or_path is None else load_base_model(settings)
    config = load_config(settings.model.config_name) if base_model is None else base_model.config
    check_attention(config, settings.run.attn_implementation)
    check_lengths(config, settings.data)
    check_dropout(config, settings.optimization)
    check_is_scored(settings.data.target_lang, settings.data.tokenized)
    accelerator = start_accelerator(settings)
    repository = None
    if settings.reporting.push_to_hub and accelerator.is_main_process:
        repository = open_repository(settings.model_name)
    with claim_output_dir(settings, accelerator):
        start_trackers(settings, accelerator)
        set_seed(settings.optimization.seed)
        # Section 5.1: data and vocabulary.
        prepared = prepare_once(settings, accelerator)
        check_first_epoch(prepared, settings)
        model = base_model or build_model(
            config,
            prepared.tokenizer,
            (settings.data.source_lang, settings.data.target_lang),
            settings.run.attn_implementation,
        )
        try:
            train_and_publish(model, origin, prepared, settings, accelerator, repository)
        except KeyboardInterrupt as ended:
            if (Path(settings.run.output_dir) / "recipe.toml").exists():
                ended.add_note(f"To resume:\n  {how_to_resume(Path(settings.run.output_dir))}")
            raise


def train_and_publish(
    model: TranslatorForConditionalGeneration,
    origin: dict[str, str],
    prepared: Prepared,
    settings: TrainingSettings,
    accelerator: Accelerator,
    repository: str | None = None,
) -> None:
    """Train a model, evaluate it and publish it, in a directory that no other run writes to, and on the Hub."""
    directory = Path(settings.run.output_dir)
    logbook = Logbook(directory, accelerator, settings, origin)
    for split, count in prepared.counts.items():
        logbook.say(f"{split}: {describe_counts(count)}")
    logbook.say(describe_training(settings, model, prepared, accelerator))
    if origin:
        logbook.say(describe_origin(origin, f"{settings.data.source_lang}-{settings.data.target_lang}"))
    fingerprint = {}
    if accelerator.is_main_process:
        fingerprint = run_fingerprint(
            settings, model.config, prepared.tokenizer, prepared.encoded, origin.get("base_model_sha256")
        )
    checkpoints = CheckpointManager(accelerator, settings.run, model, fingerprint, logbook.say)
    source, target = lengths(prepared.encoded["train"])
    logbook.keep_lengths(source=source, target=target)
    loop = TrainingLoop(accelerator, settings, prepared, checkpoints, logbook)
    try:
        loop.resume()
        with loop.stop:
            loop.train()
            # Section 6.1: the last checkpoints are averaged, and evaluated on text by which nothing was chosen.
            chosen = checkpoints.choose_weights()
            results = [loop.evaluate(split, chosen) for split in prepared.text if split != "train"]
    except Interrupted as reason:
        logbook.say(f"Ended ({reason}) after step {loop.progress.step:,}. To resume:\n  {how_to_resume(directory)}")
        return
    finally:
        loop.close()
        logbook.close()
    if accelerator.is_main_process:
        counts = prepared.counts["train"]
        folder = publish(model, prepared.tokenizer, settings, counts, results, directory, repository)
        if settings.reporting.space:
            shutil.rmtree(directory / "space", ignore_errors=True)
            write_space(folder, directory / "space")
        from training.reports.page import write_report  # brings matplotlib, half a second of a start

        write_report(read_runs([directory]), directory / "report.html")
        print(f"To look at the run, open {directory / 'report.html'}")
        task = "parse" if settings.data.target_lang == TREES else "translation"
        print(how_to_use(folder, prepared.text[results[-1].split][0]["source"], task))
        if repository is not None:
            print(f"Sent to {push(folder, repository)}")


def start_accelerator(settings: TrainingSettings) -> Accelerator:
    """Set up devices and processes, with all cores at work where there is no accelerator.

    A CPU that has no instructions for bfloat16 trains in float32, and this is said.

    Raises
    ------
    UserError
        If accelerate does not know the tracker or the precision, they do not fit the device, or the tracker is not
        installed.
    """
    log_with = None if settings.reporting.report_to == "none" else settings.reporting.report_to
    on_a_cpu = not torch.accelerator.is_available()
    precision = settings.run.mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION")
    is_too_slow = on_a_cpu and precision == "bf16" and not multiplies_bfloat16()
    warnings.filterwarnings("ignore", message="`log_with=.*no supported trackers")  # refused below
    try:
        accelerator = Accelerator(
            cpu=on_a_cpu,  # several processes find each other only if told so
            mixed_precision="no" if is_too_slow else settings.run.mixed_precision,
            log_with=log_with,
            project_dir=settings.run.output_dir,
            # One process prepares the data, or evaluates, while the others wait: longer than NCCL's ten minutes.
            kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(days=1))],
        )
    except (ImportError, ValueError) as error:
        raise UserError(
            f"report_to={log_with!r}, mixed_precision={settings.run.mixed_precision!r}: {error}"
        ) from error
    if is_too_slow:
        accelerator.print(
            f"mixed_precision={precision!r}: this CPU has no instructions for it, so the run is in float32"
        )
    check_accelerator(accelerator, settings)
    if log_with is not None and not accelerator.log_with:
        raise UserError(f"report_to={log_with!r} is not installed: install it, or leave report_to out")
    if accelerator.device.type == "cpu":
        # `accelerate launch` sets one thread unless told otherwise.
        torch.set_num_threads(max(1, usable_cores() // accelerator.num_processes))
        keep_freed_memory()
    # cuDNN plans its attention for each shape anew, and batches have thousands of them: on an H200 an update took 533
    # ms, in 65 of which the GPU was at work.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if settings.run.tf32:
        torch.set_float32_matmul_precision("high")
    return accelerator


def check_accelerator(accelerator: Accelerator, settings: TrainingSettings) -> None:
    """Refuse what accelerate, which its own environment variables set too, would ignore or do twice."""
    if accelerator.device.type == "cpu":
        if accelerator.mixed_precision == "fp16":
            raise UserError("mixed_precision='fp16' needs a GPU: on a CPU it must be 'bf16' or 'no'")
        if settings.run.tf32:
            raise UserError("tf32=True needs a GPU: on a CPU it must be false")
    if accelerator.gradient_accumulation_steps != 1:
        raise UserError(
            f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS={accelerator.gradient_accumulation_steps} must be 1: "
            "max_tokens_per_device says in how many parts an update is computed"
        )


def start_trackers(settings: TrainingSettings, accelerator: Accelerator) -> None:
    """Start the trackers, which write to the output directory, and tell them the settings."""
    config = {name: value for name, value in settings.values().items() if isinstance(value, str | int | float)}
    accelerator.init_trackers("vaswani", config=config)


def prepare_once(settings: TrainingSettings, accelerator: Accelerator) -> Prepared:
    """Prepare the data in the main process; the first process of every other machine, then all, find it cached."""
    prepared = None
    for turn in (accelerator.is_main_process, accelerator.is_local_main_process, True):
        if turn and prepared is None:
            prepared = prepare(settings.data, settings.model, settings.run.grammar_folder)
        accelerator.wait_for_everyone()
    assert prepared is not None
    return prepared


def check_first_epoch(prepared: Prepared, settings: TrainingSettings) -> None:
    """Refuse settings that do not fit the data, before the results of an earlier run make room for those of this one.

    Raises
    ------
    UserError
        If the curriculum leaves no pair, the tokenizer has no BPE-dropout, or a Space cannot have such a tokenizer.
    """
    curriculum(lengths(prepared.encoded["train"]), settings.optimization, epoch=0)
    if settings.data.bpe_dropout is not None:
        DroppingEncoder(prepared.tokenizer, settings.data.bpe_dropout, settings.optimization.seed)
    if settings.reporting.space and not prepared.tokenizer.is_fast:
        raise UserError(
            f"space=True needs a tokenizer with a tokenizer.json, and this is a {type(prepared.tokenizer).__name__}"
        )


def describe_origin(origin: dict[str, str], direction: str) -> str:
    """Say what a run starts from, and whether it learns another direction."""
    said = "Starts from the weights of {base_model}, trained on {base_model_direction}".format(**origin)
    another = f"; they now learn {direction}, with the vocabulary that they have"
    return said + (another if origin["base_model_direction"] != direction else "")


def how_to_resume(directory: Path) -> str:
    """Return the command that resumes a run."""
    recipe = str(directory / "recipe.toml")
    return shlex.join(["accelerate", "launch", "training/run.py", recipe, "--resume_from_checkpoint", "latest"])


def end_as_ctrl_c_does(number: int, frame: FrameType | None) -> NoReturn:
    """Let a signal raise what Ctrl-C raises, at which libraries remove what they have half written."""
    raise KeyboardInterrupt(number)


def describe_end(number: int, ended: KeyboardInterrupt) -> str:
    """Say that a signal ended a run outside of its training, and how to go on."""
    [how] = getattr(ended, "__notes__", ["Give the same command again"])
    return f"\nEnded ({signal.Signals(number).name}) before the work was done. {how}"


def how_to_use(folder: Path, sentence: str, task: str = "translation") -> str:
    """Say in two lines how to use a published folder."""
    return (
        f"Published to {folder}. To use it (without this package: pipeline(..., trust_remote_code=True)):\n"
        f"  import vaswani, transformers; print(transformers.pipeline({task!r}, {str(folder)!r})({sentence!r}))"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end_as_ctrl_c_does)  # `TrainingLoop` has its own way
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt as ended:
        [number] = ended.args or [signal.SIGINT]
        print(describe_end(number, ended), file=sys.stderr)
        sys.exit(128 + number)
