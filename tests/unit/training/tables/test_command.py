from argparse import Namespace

import pytest

from training.tables import command
from training.tables.command import check_jobs, check_run_flags, default_jobs, parse, reporting
from vaswani.cli import Parser
from vaswani.errors import UserError


def test_flags_of_run_are_taken_and_others_refused():
    check_run_flags(["--seed=1", "--max-tokens-per-batch", "5"], ["jobs"], {})
    with pytest.raises(UserError, match="unknown flag '--job': the nearest known one is 'jobs'"):
        check_run_flags(["--job=1"], ["jobs"], {})
    with pytest.raises(UserError, match="--seed is no flag of the whole table: each has its own"):
        check_run_flags(["--seed=1"], ["jobs"], {"seed": "each has its own"})


def test_a_command_has_flags_of_its_own_and_those_of_run(tmp_path):
    parser = Parser()
    parser.add_argument("--rows")
    arguments = ["--rows", "base,big", "--output_dir", str(tmp_path), "--seed=3"]
    options, flags = parse(parser, "table3", arguments, {})
    assert (options.rows, options.output_dir, options.list, flags) == ("base,big", tmp_path, False, ["--seed=3"])
    assert options.command == f"python training/table3.py --rows base,big --output_dir {tmp_path} --seed=3"


def test_that_a_command_resumes_is_nothing_to_say():
    with pytest.raises(UserError, match=r"--overwrite_output_dir is no flag of .*: the same command resumes"):
        parse(Parser(), "table2", ["--overwrite_output_dir"], {})


def test_the_report_is_printed_when_the_work_is_done(tmp_path, capsys):
    folder = tmp_path / "out"
    with reporting(Namespace(jobs=1, output_dir=folder), "table.md"):
        with pytest.raises(UserError, match="is in use by process"), command.own(folder):
            pass
        (folder / "table.md").write_text("| a | b |\n| --- | --- |\n| 1 | 22 |\n")
    assert capsys.readouterr().out == "a   b\n1  22\n"
    with pytest.raises(UserError, match="jobs=0 must be at least 1"), reporting(Namespace(jobs=0), "table.md"):
        pass


def test_each_gpu_is_a_job(monkeypatch):
    monkeypatch.setattr(command.torch.cuda, "device_count", lambda: 2)
    assert default_jobs() == 2
    check_jobs(2)
    with pytest.raises(UserError, match="jobs=3 must be at least 1 and at most 2"):
        check_jobs(3)
