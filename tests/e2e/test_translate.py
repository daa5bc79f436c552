"""`vaswani translate` as a user runs it: files and pipes, odd text, a kill in between."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_run import ENVIRONMENT

from vaswani import workers
from vaswani.cli import main


SECONDS = 300  # the longest wait for a process, far beyond what one needs on a busy machine
NEEDS_TWO_CORES = pytest.mark.skipif(
    not workers.CAN_FORK or workers.usable_cores() < 2, reason="two workers need two cores, and Linux"
)
COMMAND = [sys.executable, "-m", "vaswani", "translate"]
ODD = ["one two three", "", "four\x85 \u2028one", "   ", "\U0001f600 two\x00\x1b", "ten nine\r", "\r", "\tthree"]


@pytest.fixture(scope="module")
def model(finished_run):
    return str(finished_run / "model")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory, corpus):
    """Return a file of many lines, some of them empty."""
    sentences = [line.split("\t")[0] for line in (corpus / "train.tsv").read_text().splitlines()[:600]]
    path = tmp_path_factory.mktemp("text") / "numbers.en"
    path.write_text("".join("\n" if index % 50 == 7 else f"{line}\n" for index, line in enumerate(sentences)))
    return path


def test_a_line_in_is_a_line_out_whatever_it_holds(model, tmp_path, capfd):
    (tmp_path / "odd").write_bytes("\n".join(ODD).encode())
    assert (
        main(["translate", "--model", model, "--input", str(tmp_path / "odd"), "--output", str(tmp_path / "out")]) == 0
    )
    lines = (tmp_path / "out").read_bytes().decode().split("\n")
    assert len(lines) == len(ODD) + 1
    assert [lines[index] for index in (0, 1, 3, 5, 6, 8)] == ["drei zwei eins", "", "", "neun zehn", "", ""]
    said = capfd.readouterr()
    assert said.out == ""
    assert "100% 8/8 [" in said.err
    assert "sentences/s" in said.err


def test_the_order_is_that_of_the_input_and_depends_on_nothing(model, numbers, tmp_path, monkeypatch):
    outputs = []
    monkeypatch.setattr(workers, "usable_cores", lambda: 3)
    small, shared = ("--max_batch_tokens=50", "--read_ahead=7"), ("--workers=3", "--read_ahead=300")
    for flags in (("--workers=1",), small, ("--num_beams=3", "--quiet"), shared):
        output = tmp_path / "out"
        assert main(["translate", "--model", model, "--input", str(numbers), "--output", str(output), *flags]) == 0
        outputs.append(output.read_text().split("\n"))
    sources = numbers.read_text().split("\n")
    assert outputs[0] == outputs[1] == outputs[3]
    assert len(outputs[0]) == len(outputs[2]) == len(sources)
    assert [not line for line in outputs[0]] == [not line for line in sources]
    numbered = [len(line.split()) == len(there.split()) for line, there in zip(outputs[0], sources, strict=True)]
    assert sum(numbered) > 0.8 * len(sources)


@NEEDS_TWO_CORES
def test_no_worker_outlives_the_command(model, numbers, tmp_path):
    before = set(multiprocessing.active_children())
    command = ["translate", "--model", model, "--input", str(numbers), "--output", str(tmp_path / "out"), "--quiet"]
    assert main([*command, "--workers=2"]) == 0
    assert set(multiprocessing.active_children()) <= before


def test_n_best_lists_come_with_scores_and_in_order(model, tmp_path, capfd):
    (tmp_path / "in").write_text("one two\n\nsix nine\n")
    flags = ["--num_beams", "4", "--n_best", "3", "--scores", "--quiet"]
    assert main(["translate", "--model", model, "--input", str(tmp_path / "in"), *flags]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [text for _, text in rows[3:6]] == [""] * 3
    assert (len(rows), rows[0][1], rows[6][1]) == (9, "zwei eins", "neun sechs")
    for first in (0, 6):
        scores = [float(score) for score, _ in rows[first : first + 3]]
        assert scores == sorted(scores, reverse=True)
        assert len({text for _, text in rows[first : first + 3]}) == 3


def test_an_ensemble_of_a_model_and_itself_translates_as_it_does(model, tmp_path, capfd):
    (tmp_path / "in").write_text("one two\n\nsix nine\n")
    flags = ["translate", "--model", model, "--input", str(tmp_path / "in"), "--num_beams", "4", "--scores", "--quiet"]
    outputs = []
    for further in ([], ["--ensemble", model, model]):
        assert main([*flags, *further]) == 0
        outputs.append([line.split("\t") for line in capfd.readouterr().out.splitlines()])
    alone, together = ([text for _, text in rows] for rows in outputs)
    assert alone == together == ["zwei eins", "", "neun sechs"]
    scores = [[float(score) for score, _ in rows] for rows in outputs]
    assert scores[0] == pytest.approx(scores[1], abs=2e-4)


def test_with_a_shortlist_of_the_training_text_a_model_says_the_same(model, corpus, numbers, tmp_path, capfd):
    shutil.copytree(model, tmp_path / "model")
    pairs = [line.split("\t") for line in (corpus / "train.tsv").read_text(encoding="utf-8").splitlines()]
    for side, name in enumerate(("train.en", "train.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    text = ["--source", str(tmp_path / "train.en"), "--target", str(tmp_path / "train.de")]
    assert main(["shortlist", "--model", str(tmp_path / "model"), *text, "--per_source=8", "--frequent=8"]) == 0
    said = capfd.readouterr().err
    assert "Aligning: 100%" in said
    assert float(said.split("% of the target tokens")[0].split()[-1]) > 99
    few = tmp_path / "few.en"
    few.write_text("".join(numbers.read_text(encoding="utf-8").splitlines(keepends=True)[:150]), encoding="utf-8")
    flags = ["--model", str(tmp_path / "model"), "--input", str(few), "--quiet", "--max_batch_tokens=8"]
    lines = []
    for given in ([], ["--shortlist"]):
        assert main(["translate", *flags, *given, "--output", str(tmp_path / "out")]) == 0
        lines.append((tmp_path / "out").read_text(encoding="utf-8").splitlines())
    equal = sum(one == other for one, other in zip(*lines, strict=True))
    assert equal >= 0.99 * len(lines[0])


def start(model, numbers, output, *more, lines=5):
    # Small windows and batches, so that it is still at work when the signal comes.
    flags = ["--model", model, "--input", str(numbers), "--output", str(output), *more]
    flags += [f"--read_ahead={lines}", "--max_batch_tokens=9"]
    process = subprocess.Popen([*COMMAND, *flags], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and not (output.exists() and output.stat().st_size):
        if time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"no line was written within {SECONDS} s: {process.communicate()[1]}")
        time.sleep(0.01)
    assert process.poll() is None, f"it ended before the signal: {process.stderr.read()}"
    return process


@pytest.mark.parametrize("together", [1, pytest.param(2, marks=NEEDS_TWO_CORES)])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_interrupted_it_leaves_whole_lines_and_resume_adds_the_others(number, together, model, numbers, tmp_path):
    whole, output = tmp_path / "whole", tmp_path / "out"
    assert main(["translate", "--model", model, "--input", str(numbers), "--output", str(whole), "--quiet"]) == 0
    process = start(model, numbers, output, f"--workers={together}")
    process.send_signal(number)
    _, said = process.communicate(timeout=SECONDS)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert f"Ended ({number.name}): the output holds whole lines; the same command with --resume" in said
        assert "Traceback" not in said
    left = output.read_bytes()
    assert left.endswith(b"\n")
    assert whole.read_bytes().startswith(left)
    assert 0 < left.count(b"\n") < 600
    with open(output, "ab") as file:
        file.write(b"drei hal")  # what a crash of the machine may leave
    again = ["translate", "--model", model, "--input", str(numbers), "--output", str(output), "--resume", "--quiet"]
    assert main(again) == 0
    assert output.read_bytes() == whole.read_bytes()
    assert main(again) == 0  # there is nothing left to do
    assert output.read_bytes() == whole.read_bytes()


def workers_of(process):
    """Return the workers of a command, which exist while it translates a window."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        pids = [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if parent_of(stat) == process.pid]
        if len(pids) == 2:
            return pids
    raise AssertionError(f"there are no workers after {SECONDS} s")


def parent_of(stat):
    """Return the parent of a process; None if it has ended by now."""
    try:
        return int(stat.read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


@NEEDS_TWO_CORES
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_worker_that_is_killed_is_named_and_nothing_is_lost(number, model, numbers, tmp_path):
    whole, output = tmp_path / "whole", tmp_path / "out"
    command = ["translate", "--model", model, "--input", str(numbers), "--quiet", "--output"]
    assert main([*command, str(whole)]) == 0
    process = start(model, numbers, output, "--workers=2", "--quiet", lines=150)
    killed, other = workers_of(process)
    os.kill(killed, number)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    again = "the output holds whole lines; the same command with --resume does the others"
    assert re.fullmatch(rf"error: worker [12] of 2 was ended by {number.name}: {again}\n", said)
    assert not Path(f"/proc/{other}").exists()
    left = output.read_bytes()
    assert 150 <= left.count(b"\n") < 600
    assert left.endswith(b"\n")
    assert whole.read_bytes().startswith(left)
    assert main([*command, str(output), "--resume", "--max_batch_tokens=200", "--workers=2"]) == 0
    assert output.read_bytes() == whole.read_bytes()


@NEEDS_TWO_CORES
def test_killed_it_leaves_no_worker_behind(model, numbers, tmp_path):
    process = start(model, numbers, tmp_path / "out", "--workers=2", lines=150)
    pids = workers_of(process)
    process.kill()
    process.communicate(timeout=SECONDS)
    deadline = time.monotonic() + SECONDS
    while any(Path(f"/proc/{pid}").exists() and not is_zombie(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.01)


def is_zombie(pid):
    """Tell whether a process has ended, but nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_pipe_is_answered_while_it_stays_open(model):
    process = subprocess.Popen(
        [*COMMAND, "--model", model], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    for english, german in (("one two\n", "zwei eins\n"), ("\n", "\n"), ("three ten\n", "zehn drei\n")):
        process.stdin.write(english.encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == german
    process.stdin.write(b"six four")
    assert process.communicate(timeout=SECONDS)[0] == b"vier sechs\n"
    assert process.returncode == 0


def test_a_reader_that_has_had_enough_ends_it_quietly(model, numbers):
    line = f"{' '.join(COMMAND)} --model {model} --input {numbers} --read_ahead 5 --quiet | head -n 3"
    done = subprocess.run(["bash", "-c", line], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 3
    assert "Traceback" not in done.stderr
    assert "rror" not in done.stderr


def test_bytes_that_are_not_utf8_are_named_by_line_or_replaced(model, tmp_path, capfd):
    (tmp_path / "in").write_bytes(b"one two\ntwo six\nthr\xffee\nfour five\n")
    flags = [
        "translate",
        "--model",
        model,
        "--input",
        str(tmp_path / "in"),
        "--output",
        str(tmp_path / "out"),
        "--quiet",
    ]
    assert main(flags) == 1
    said = f"error: {tmp_path / 'in'} is not UTF-8 in line 3: invalid start byte (--replace_invalid reads such bytes "
    assert capfd.readouterr().err == f"{said}as U+FFFD)\n"
    assert not (tmp_path / "out").exists()
    assert main([*flags, "--replace_invalid"]) == 0
    assert (tmp_path / "out").read_text().split("\n")[::3] == ["zwei eins", "fünf vier"]
    command = [*COMMAND, "--model", model, "--quiet"]
    done = subprocess.run(
        command, env=ENVIRONMENT, input=(tmp_path / "in").read_bytes(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"zwei eins\nsechs zwei\n")
    assert b"error: standard input is not UTF-8 in line 3: invalid start byte (--replace_invalid" in done.stderr


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--num_beams", "0"], "argument --num_beams: '0' must be a whole number of at least 1"),
        (["--num_beams", "-2"], "argument --num_beams: '-2' must be a whole number of at least 1"),
        (
            ["--length_penalty_alpha", "much"],
            "argument --length_penalty_alpha: 'much' must be a number from -10 to 10, such as 0.6",
        ),
        (["--num_beams", "2", "--n_best", "3"], "--n_best=3 must be at most --num_beams=2"),
        (["--resume"], "--resume needs --output"),
        (["--beams", "3"], "unrecognized arguments: --beams 3"),
        (["--input", "nowhere"], "nowhere cannot be read: No such file or directory"),
        (["--output", "no/where"], "no/where cannot be opened: No such file or directory"),
        (["--dtype", "int3"], "argument --dtype: invalid choice: 'int3' (choose from"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(flags, sentence, model, tmp_path, capfd):
    (tmp_path / "in").write_text("one\n")
    assert main(["translate", "--model", model, "--input", str(tmp_path / "in"), *flags]) == 1
    said = capfd.readouterr()
    assert said.err.startswith(f"error: {sentence}")
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_an_output_longer_than_the_input_is_not_its_translation(model, tmp_path, capfd):
    (tmp_path / "in").write_text("one\n")
    (tmp_path / "out").write_text("eins\nzwei\n")
    files = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert main(["translate", "--model", model, *files, "--resume"]) == 1
    assert "out has 2 lines but " in capfd.readouterr().err


def test_help_says_everything_with_an_example(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["translate", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for text in ("vaswani translate --model runs/demo/model --input", "--resume", "--n_best", "CR LF", "empty lines"):
        assert text in said
    assert main([]) == 0
    assert "translate" in capsys.readouterr().out
