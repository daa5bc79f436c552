"""The entry point's own parts; the whole way is in tests/e2e."""

import os
import runpy
import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from flat_settings import make_settings
from opus_model import save_vocabulary
from sacrebleu.tokenizers import tokenizer_ja_mecab
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from training import run
from training.data.preparation import Prepared
from training.reports import page
from training.settings import ROOT
from vaswani.errors import UserError
from vaswani.tokenization import wrap_tokenizer


def test_a_mistake_is_one_sentence_and_no_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "--max_steps", "0", "--dataset_name", "x"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "training" / "run.py"), run_name="__main__")
    assert str(ended.value.code).startswith("error: source_lang is missing")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_before_the_first_update_is_one_sentence_and_no_traceback(number, monkeypatch, capsys):
    def interrupt(arguments):
        os.kill(os.getpid(), number)
        signal.getsignal(number)  # Python's handler runs before this is over

    monkeypatch.setattr("training.recipe.parse_settings", interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "training" / "run.py"), run_name="__main__")
    finally:
        for one, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(one, handler)
    assert ended.value.code == 128 + number
    said = f"\nEnded ({number.name}) before the work was done. Give the same command again\n"
    assert capsys.readouterr().err == said


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Return a function that goes the way of a run with stand-ins for its parts, the last of which is given."""

    def go(train_and_publish, *flags: str, build_model=lambda *given: torch.rand(3)) -> None:
        monkeypatch.setattr(run, "prepare_once", lambda *given: SimpleNamespace(tokenizer=None))
        monkeypatch.setattr(run, "check_first_epoch", lambda *given: None)
        monkeypatch.setattr(run, "build_model", build_model)
        monkeypatch.setattr(run, "train_and_publish", train_and_publish)
        run.main(["--dataset_name=x", "--source_lang=en", "--target_lang=de", f"--output_dir={tmp_path}", *flags])

    return go


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_signal_outside_of_the_training_says_how_to_go_on(has_begun, start, tmp_path):
    def interrupt(*given):
        if has_begun:
            (tmp_path / "recipe.toml").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as ended:
        start(interrupt)
    how = f"To resume:\n  {run.how_to_resume(tmp_path)}" if has_begun else "Give the same command again"
    said = run.describe_end(signal.SIGTERM, ended.value)
    assert said == f"\nEnded (SIGTERM) before the work was done. {how}"


def test_new_weights_follow_the_seed(start):
    def weights(seed: int) -> torch.Tensor:
        made = []
        start(lambda model, *given: made.append(model), f"--seed={seed}")
        return made[0]

    assert torch.equal(weights(5), weights(5))
    assert not torch.equal(weights(5), weights(6))


def test_a_new_model_has_the_languages_and_the_attention_of_the_settings(start):
    asked = []
    start(lambda *given: None, "--attn_implementation=eager", build_model=lambda *given: asked.append(given[2:]))
    assert asked == [(("en", "de"), "eager")]


def test_of_text_that_was_tokenized_no_language_needs_a_package_that_divides_it(start, monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    begun = []
    start(lambda *given: begun.append(True), "--target_lang=ja", "--tokenized=true")
    assert begun == [True]


@pytest.mark.parametrize("is_main", [True, False])
def test_one_process_makes_the_repository(start, monkeypatch, is_main):
    opened, given = [], []
    monkeypatch.setattr(run, "open_repository", lambda name: opened.append(name) or f"me/{name}")
    monkeypatch.setattr(Accelerator, "is_main_process", is_main)
    monkeypatch.setattr(run, "claim_output_dir", lambda *given: nullcontext())
    start(lambda *parts: given.append(parts[-1]), "--push_to_hub", "--hub_model_id=it")
    assert opened == ["it"] * is_main
    assert given == ["me/it" if is_main else None]


def test_a_start_needs_neither_the_compiler_nor_pictures_nor_garbage_collection():
    program = """if True:
        import gc, sys, training.run
        assert not {"torch._inductor.compile_fx", "matplotlib"} & set(sys.modules)
        assert gc.isenabled() and gc.get_freeze_count() > 100_000
    """
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def accelerator_of(**given) -> SimpleNamespace:
    """Return what `start_accelerator` looks at of an accelerator."""
    usual = {"num_processes": 1, "mixed_precision": "no", "gradient_accumulation_steps": 1}
    return SimpleNamespace(**{"device": torch.device("cpu")} | usual | given)


@pytest.mark.parametrize(
    ("given", "flags", "sentence"),
    [
        ({"mixed_precision": "fp16"}, {}, "mixed_precision='fp16' needs a GPU: on a CPU it must be 'bf16' or 'no'"),
        ({}, {"tf32": True}, "tf32=True needs a GPU"),
        ({"gradient_accumulation_steps": 4}, {}, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 must be 1"),
    ],
)
def test_what_would_be_ignored_is_refused(given, flags, sentence):
    settings = make_settings(**flags)
    with pytest.raises(UserError, match=sentence):
        run.check_accelerator(accelerator_of(**given), settings)
    on_a_gpu = {"device": torch.device("cuda"), **given, "gradient_accumulation_steps": 1}
    run.check_accelerator(accelerator_of(**on_a_gpu), settings)


def test_what_accelerate_is_told_by_its_variables_is_refused_too(monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2")
    with pytest.raises(UserError, match="ACCELERATE_GRADIENT_ACCUMULATION_STEPS=2 must be 1"):
        run.start_accelerator(make_settings())


def test_the_accelerator_is_that_of_the_settings(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        run,
        "Accelerator",
        lambda **given: seen.update(given) or accelerator_of(num_processes=2, log_with=[given["log_with"]]),
    )
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(run, "usable_cores", lambda: 6)
    monkeypatch.setattr(run, "multiplies_bfloat16", lambda: True)
    run.start_accelerator(make_settings(mixed_precision="bf16", output_dir="runs/mine", report_to="tensorboard"))
    assert (seen["mixed_precision"], seen["project_dir"], seen["log_with"]) == ("bf16", "runs/mine", "tensorboard")
    assert threads == [3]
    assert seen["kwargs_handlers"][0].timeout >= timedelta(days=1)  # processes wait for the one that prepares the text
    run.start_accelerator(make_settings())
    assert (seen["mixed_precision"], seen["log_with"]) == (None, None)


@pytest.mark.parametrize("tf32", [True, False])
def test_products_are_in_tensorfloat_where_the_settings_say_so(tf32, monkeypatch):
    said = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", said.append)
    monkeypatch.setattr(run, "Accelerator", lambda **given: accelerator_of(device=torch.device("cuda")))
    run.start_accelerator(make_settings(tf32=tf32))
    assert said == ["high"] * tf32


def test_trackers_are_told_every_setting_that_they_can_show():
    told = []
    accelerator = SimpleNamespace(init_trackers=lambda name, config: told.append(config))
    run.start_trackers(
        make_settings(seed=5, learning_rate_factor=0.7, output_dir="it", train_file=["a.tsv"]), accelerator
    )
    [config] = told
    assert (config["seed"], config["learning_rate_factor"], config["output_dir"]) == (5, 0.7, "it")
    assert not {"train_file", "max_time"} & set(config)


@pytest.mark.parametrize(
    ("asked", "by_variable", "has_gpu", "taken", "is_told"),
    [
        ("bf16", None, False, "no", True),
        (None, "bf16", False, "no", True),
        ("no", "bf16", False, "no", False),
        (None, None, False, None, False),
        ("bf16", None, True, "bf16", False),
    ],
)
def test_a_cpu_without_instructions_for_bfloat16_trains_in_float32(
    asked, by_variable, has_gpu, taken, is_told, monkeypatch
):
    told, said = {}, []
    if by_variable is not None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", by_variable)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: has_gpu)
    monkeypatch.setattr(run, "multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(run, "Accelerator", lambda **given: told.update(given) or accelerator_of(print=said.append))
    run.start_accelerator(make_settings(mixed_precision=asked))
    assert told["mixed_precision"] == taken
    sentence = "mixed_precision='bf16': this CPU has no instructions for it, so the run is in float32"
    assert said == [sentence] * is_told


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_memory_that_tensors_free_is_kept_on_a_cpu(device, monkeypatch):
    kept = []
    monkeypatch.setattr(run, "keep_freed_memory", lambda: kept.append(True))
    monkeypatch.setattr(run, "Accelerator", lambda **given: accelerator_of(device=torch.device(device)))
    run.start_accelerator(make_settings())
    assert kept == [True] * (device == "cpu")


def test_cudnn_plans_no_attention(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: said.append(enabled))
    said = []
    run.start_accelerator(make_settings())
    assert said == [False]


def test_an_unknown_tracker_is_refused_in_a_sentence():
    with pytest.raises(UserError, match="report_to='no such tracker'"):
        run.start_accelerator(make_settings(report_to="no such tracker"))


def test_a_tracker_that_is_not_installed_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: [])
    for name in ("wandb", "all"):
        with pytest.raises(UserError, match=f"^report_to='{name}' is not installed: install it, or leave"):
            run.start_accelerator(make_settings(report_to=name))


def test_the_repository_of_a_run_in_the_working_directory_has_its_name(monkeypatch, tmp_path):
    def end(name: str):
        raise UserError(name)

    monkeypatch.setattr(run, "open_repository", end)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    with pytest.raises(UserError, match=r"^mine$"):
        run.main(["--dataset_name=x", "--source_lang=en", "--target_lang=de", "--output_dir=.", "--push_to_hub"])


def test_data_is_prepared_once_in_a_process(monkeypatch):
    calls = []
    monkeypatch.setattr(run, "prepare", lambda *given: calls.append(given) or Prepared({}, None, {}, {}))
    settings = make_settings(output_dir="somewhere")
    assert run.prepare_once(settings, Accelerator(cpu=True)) == Prepared({}, None, {}, {})
    assert calls == [(settings.data, settings.model, Path("somewhere/corpus"))]


@pytest.mark.parametrize(("is_first", "waits"), [((True, True), 0), ((False, True), 1), ((False, False), 2)])
def test_other_processes_wait_until_the_data_is_in_the_cache(is_first, waits, monkeypatch):
    waited, before = [], []
    monkeypatch.setattr(run, "prepare", lambda *given: before.append(len(waited)) or Prepared({}, None, {}, {}))
    accelerator = SimpleNamespace(is_main_process=is_first[0], is_local_main_process=is_first[1])
    accelerator.wait_for_everyone = lambda: waited.append(True)
    run.prepare_once(make_settings(), accelerator)
    assert (before, len(waited)) == ([waits], 3)


def test_what_came_of_a_run_is_published_and_a_new_space_takes_the_place_of_the_old_one(monkeypatch, tmp_path):
    told, published = {}, []
    logbook = SimpleNamespace(say=print, keep_lengths=lambda **lengths: told.update(lengths), close=lambda: None)
    loop = SimpleNamespace(resume=lambda: None, stop=nullcontext(), train=lambda: None, close=lambda: None)
    loop.evaluate = lambda split, chosen: SimpleNamespace(split=split, chosen=chosen)
    for name, part in (
        ("Logbook", logbook),
        ("TrainingLoop", loop),
        ("CheckpointManager", SimpleNamespace(choose_weights=lambda: "the average")),
        ("describe_training", ""),
        ("read_runs", []),
    ):
        monkeypatch.setattr(run, name, lambda *given, part=part: part)
    monkeypatch.setattr(run, "run_fingerprint", lambda *given: told.update(base_model=given[-1]))
    monkeypatch.setattr(run, "publish", lambda *given: published.append(given[3:]) or tmp_path / "model")
    monkeypatch.setattr(run, "write_space", lambda model, folder: folder.mkdir())
    monkeypatch.setattr(page, "write_report", lambda runs, path: path.touch())
    counts = {"train": {"kept": 9}, "validation": {"kept": 2}, "test": {"kept": 1}}
    encoded = {"train": Dataset.from_dict({"source_length": [3, 4], "target_length": [5, 6]})}
    prepared = Prepared({split: [{"source": "a"}] for split in counts}, None, encoded, counts)
    (tmp_path / "space").mkdir()
    (tmp_path / "space" / "old").touch()
    settings = make_settings(output_dir=str(tmp_path), space=True, source_lang="en", target_lang="de")
    origin = {"base_model": "it", "base_model_direction": "en-de", "base_model_sha256": "ab"}
    run.train_and_publish(SimpleNamespace(config=None), origin, prepared, settings, Accelerator(cpu=True))
    assert {name: list(value) for name, value in told.items()} == {
        "source": [3, 4], "target": [5, 6], "base_model": ["a", "b"],
    }  # fmt: skip
    [(kept, results, *_)] = published
    assert kept == counts["train"]
    assert [(each.split, each.chosen) for each in results] == [("validation", "the average"), ("test", "the average")]
    assert list((tmp_path / "space").iterdir()) == []
    assert (tmp_path / "report.html").exists()


def test_it_says_where_a_run_starts_how_to_resume_it_and_how_to_use_it():
    origin = {"base_model": "me/base", "base_model_direction": "en-de"}
    assert run.describe_origin(origin, "en-de").endswith("me/base, trained on en-de")
    assert run.describe_origin(origin, "en-nl").endswith(
        "trained on en-de; they now learn en-nl, with the vocabulary that they have"
    )
    command = run.how_to_resume(Path("runs/mine"))
    assert command == "accelerate launch training/run.py runs/mine/recipe.toml --resume_from_checkpoint latest"
    assert shlex.split(run.how_to_resume(Path("my runs/it's")))[3] == "my runs/it's/recipe.toml"
    line = run.how_to_use(Path("""runs/"it's"/model"""), "It's one.").split("\n")[1].strip()
    compile(line, "what it prints", "exec")
    line = run.how_to_use(Path("runs/mine/model"), "It's one.")
    assert "'runs/mine/model'" in line or '"runs/mine/model"' in line


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--config_name=E-learned", "--max_source_length=2000"], "max_source_length=2000 must be at most the 1024"),
        (["--config_name=D-drop0.0", "--rdrop_alpha=5"], "rdrop_alpha=5.0 needs a model with dropout"),
        (["--target_lang=ja"], "target_lang='ja': sacreBLEU divides it by MeCab, which is not installed"),
        (["--attn_implementation=spda"], "attn_implementation='spda' cannot be used here"),
    ],
)
def test_what_the_model_cannot_do_is_refused_before_anything_begins(flags, sentence, monkeypatch):
    monkeypatch.setattr(run, "start_accelerator", lambda settings: pytest.fail("it began"))
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UserError, match=sentence):
        run.main(["--dataset_name=x", "--source_lang=en", "--target_lang=de", *flags])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"curriculum_epochs": 1, "curriculum_length": 2}, "curriculum_length=2 leaves no pair to train on"),
        ({"bpe_dropout": 0.1}, r"bpe_dropout=0\.1 needs a tokenizer that divides text into words"),
    ],
)
def test_what_does_not_fit_the_data_is_refused_while_an_earlier_run_is_whole(flags, sentence, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "train_and_publish", lambda *given: pytest.fail("it began"))
    tokenizer = wrap_tokenizer(Tokenizer(models.WordLevel({"</s>": 0, "<pad>": 1}, unk_token="<pad>")))
    encoded = {"train": Dataset.from_dict({"source_length": [3], "target_length": [5]})}
    monkeypatch.setattr(run, "prepare_once", lambda *given: Prepared({}, tokenizer, encoded, {}))
    given = {"dataset_name": "x", "source_lang": "en", "target_lang": "de", "output_dir": tmp_path} | flags
    with pytest.raises(UserError, match=f"^{sentence}"):
        run.main([f"--{name}={value}" for name, value in given.items()])


def test_a_space_for_a_tokenizer_in_python_is_refused_before_the_training(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "train_and_publish", lambda *given: pytest.fail("it began"))
    save_vocabulary(tmp_path)
    encoded = {"train": Dataset.from_dict({"source_length": [3], "target_length": [5]})}
    prepared = Prepared({}, AutoTokenizer.from_pretrained(tmp_path), encoded, {})
    monkeypatch.setattr(run, "prepare_once", lambda *given: prepared)
    given = ["--dataset_name=x", "--source_lang=en", "--target_lang=de", f"--output_dir={tmp_path / 'run'}"]
    with pytest.raises(UserError, match=r"space=True needs a tokenizer with a tokenizer\.json, .* MarianTokenizer"):
        run.main([*given, "--space=true"])
