"""A run that is cut off resumes as if nothing had happened; one that adds up tokens adds up to the same anywhere."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny_run import ENVIRONMENT, PYTHON, TORCHRUN, WITH_DROPOUT, command, end_it_at, launch, rows

from training.settings import ROOT


FLAGS = ["--max_steps=70", "--max_tokens_per_batch=600", "--length_groups=2", "--max_tokens_per_device=200"]
FLAGS += ["--max_source_length=40", "--max_target_length=40", "--warmup_steps=100", "--learning_rate_factor=0.3"]
FLAGS += ["--logging_steps=10", "--eval_steps=25", "--save_steps=15", "--save_total_limit=2"]
FLAGS += ["--average_checkpoints=2", "--max_eval_samples=8"]
BESIDE_THE_PAPER = ["--bpe_dropout=0.1", "--rdrop_alpha=2", "--weight_decay=0.1", "--max_grad_norm=1"]
RESUME = ["--resume_from_checkpoint", "latest"]


def assert_same(one: Path, other: Path) -> None:
    weights = [load_file(run / "model" / "model.safetensors") for run in (one, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert rows(one) == rows(other)
    kept = [sorted(path.name for path in (run / "checkpoints").glob("step-*")) for run in (one, other)]
    assert kept[0] == kept[1] == ["step-0000060", "step-0000070"]


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """Return a function that gives the output directory of an uninterrupted run."""
    finished = {}

    def run(launcher: list[str], precision: str, *more: str) -> Path:
        key = (len(launcher), precision, *more)
        if key not in finished:
            finished[key] = tmp_path_factory.mktemp("whole") / precision
            flags = [*FLAGS, f"--mixed_precision={precision}", *more]
            done = launch(launcher, corpus, *flags, "--output_dir", finished[key])
            assert done.returncode == 0, done.stderr
        return finished[key]

    return run


@pytest.mark.parametrize(
    ("launcher", "precision"), [(PYTHON, "bf16"), (TORCHRUN, "no")], ids=["one", "two, in float32"]
)
def test_after_kill_9_a_run_ends_as_if_it_had_not_been_killed(launcher, precision, whole, corpus, tmp_path):
    more = [*BESIDE_THE_PAPER, f"--config_name={corpus / WITH_DROPOUT}"]  # R-Drop needs dropout
    run, flags = tmp_path / "run", [*FLAGS, f"--mixed_precision={precision}", *more]
    status, _ = end_it_at(20, signal.SIGKILL, command(launcher, corpus, *flags, f"--output_dir={run}"), run)
    assert status == -signal.SIGKILL
    done = launch(launcher, corpus, *flags, "--output_dir", str(run), *RESUME)
    assert "Resumed from" in done.stdout + done.stderr
    assert_same(run, whole(launcher, precision, *more))


def test_after_sigterm_a_run_exits_with_0_and_the_command_that_resumes_it(whole, corpus, tmp_path):
    run, flags = tmp_path / "run", [*FLAGS, "--mixed_precision=bf16", "--dataloader_num_workers=1"]
    status, said = end_it_at(20, signal.SIGTERM, command(PYTHON, corpus, *flags, f"--output_dir={run}"), run)
    assert status == 0
    assert "Ended (SIGTERM) after step" in said
    assert [path.name for path in (run / "checkpoints").glob("*-interrupted")]
    *_, resume = [line.strip() for line in said.splitlines() if "--resume_from_checkpoint latest" in line]
    launcher, *arguments = resume.split("training/run.py ")
    assert launcher == "accelerate launch "
    line = [*PYTHON, str(ROOT / "training" / "run.py"), *arguments[0].split()]
    subprocess.run(line, cwd=corpus, env=ENVIRONMENT, capture_output=True, check=True)
    assert_same(run, whole(PYTHON, "bf16"))


def test_a_torn_checkpoint_is_set_aside_and_the_one_before_it_used(whole, corpus, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole(PYTHON, "bf16"), run)
    weights = run / "checkpoints" / "step-0000070" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    shutil.rmtree(run / "model")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 70, "spl')  # as a killed process may leave it
    done = launch(PYTHON, corpus, *FLAGS, "--mixed_precision=bf16", "--output_dir", str(run), *RESUME)
    said = done.stdout + done.stderr
    assert "step-0000070 is damaged (model.safetensors differs from its checksum): it is set aside" in said
    assert "at step 60" in said
    assert_same(run, whole(PYTHON, "bf16"))


def test_another_number_of_processes_resumes_with_the_same_updates(whole, corpus, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole(PYTHON, "no"), run)
    shutil.rmtree(run / "checkpoints" / "step-0000070")
    done = launch(TORCHRUN, corpus, *FLAGS, "--mixed_precision=no", "--output_dir", str(run), *RESUME)
    assert "It was saved by 1 process(es), now there are 2" in done.stdout + done.stderr
    assert rows(run)[-3]["loss"] == pytest.approx(rows(whole(PYTHON, "no"))[-3]["loss"], abs=1e-4)


def test_fsdp_resumes_with_the_same_updates(whole, corpus, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole(PYTHON, "no"), run)
    shutil.rmtree(run / "checkpoints" / "step-0000070")
    config = yaml.safe_load((ROOT / "training" / "launch" / "fsdp2.yaml").read_text())["fsdp_config"]
    config["fsdp_transformer_cls_to_wrap"] = config.pop("fsdp_transformer_layer_cls_to_wrap")
    fsdp = {"ACCELERATE_USE_FSDP": "true"} | {name.upper(): str(value) for name, value in config.items()}
    flags = [*FLAGS, "--mixed_precision=no", "--output_dir", str(run), *RESUME]
    launcher = [*TORCHRUN, str(Path(__file__).with_name("fsdp_on_cpus.py"))]
    done = launch(launcher, corpus, *flags, environment=ENVIRONMENT | fsdp)
    assert "2 process(es) on cpu (FSDP)" in done.stdout + done.stderr
    assert "Resumed from" in done.stdout + done.stderr
    ours, expected = ([row["nll"] for row in rows(run)[-3:]] for run in (run, whole(PYTHON, "no")))
    assert ours == pytest.approx(expected, abs=1e-4)
    for name in ("model.safetensors", "optimizer.safetensors"):  # whole tensors, as any number of processes reads them
        shapes = [
            {key: tensor.shape for key, tensor in load_file(each / "checkpoints" / "step-0000070" / name).items()}
            for each in (run, whole(PYTHON, "no"))
        ]
        assert shapes[0] == shapes[1]


def test_changed_settings_are_shown_and_refused(whole, corpus, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole(PYTHON, "bf16"), run)
    flags = [*FLAGS, "--mixed_precision=bf16", "--output_dir", str(run), *RESUME]
    done = launch(PYTHON, corpus, *flags, "--seed=5", "--warmup_steps=50", "--max_train_samples=4000")
    assert done.returncode != 0
    for difference in (
        "recipe's seed is 2017 there, 5 here",
        "recipe's warmup_steps is 100 there, 50 here",
        "data's train is '5,000 pairs",
    ):
        assert difference in done.stderr
    elsewhere = whole(PYTHON, "no") / "checkpoints" / "step-0000070"
    done = launch(PYTHON, corpus, *flags[:-1], str(elsewhere))
    assert "must be 'latest' or a checkpoint in" in done.stderr
    assert (run / "model" / "model.safetensors").exists()


def test_time_that_is_over_ends_a_run_in_order(corpus, tmp_path):
    flags = [*FLAGS, "--output_dir", str(tmp_path / "run"), "--max_time=0.001", *RESUME]
    done = launch(PYTHON, corpus, *flags)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "There is no checkpoint yet" in said
    assert "Ended (max_time is over) after step 1." in said


def test_gradients_are_those_of_the_whole_update_however_it_is_divided(corpus, tmp_path):
    """Not bitwise: floating-point sums depend on their order, and every division has another one."""
    flags = ["--max_steps=20", "--max_tokens_per_batch=600", "--max_source_length=40", "--max_target_length=40"]
    flags += ["--warmup_steps=4000", "--logging_steps=1", "--eval_steps=0", "--save_steps=1", "--max_eval_samples=2"]
    flags += ["--mixed_precision=no"]
    gradients, weights = [], []
    for number, (launcher, positions) in enumerate([(PYTHON, 8192), (PYTHON, 190), (TORCHRUN, 190)]):
        run = tmp_path / str(number)
        done = launch(launcher, corpus, *flags, f"--max_tokens_per_device={positions}", "--output_dir", str(run))
        assert done.returncode == 0, done.stderr
        assert f"{1 + (launcher is TORCHRUN)} process(es) on cpu" in done.stdout + done.stderr
        moments = load_file(run / "checkpoints" / "step-0000001" / "optimizer.safetensors")
        gradients.append({name: value / 0.1 for name, value in moments.items() if name.startswith("exp_avg.")})
        weights.append(load_file(run / "checkpoints" / "step-0000020" / "model.safetensors"))
    for other in (1, 2):
        for tensors in (gradients, weights):
            worst = max((tensors[0][name] - tensors[other][name]).abs().max() for name in tensors[0])
            assert worst < 1e-6
    assert max(value.abs().max() for value in gradients[0].values()) > 0.01
