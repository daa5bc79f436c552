import os
import signal
import subprocess
import sys

import pytest

from vaswani import cli
from vaswani.cli import attention


def test_help_lists_every_command_in_its_group_a_line_each(capsys):
    assert cli.main(["--help"]) == cli.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in cli.COMMANDS.items():
        (line,) = {line for line in lines if line.startswith(f"  {name} ")}
        assert line.endswith(command.summary)
        assert len(line) <= 100
    headings = [
        line for line in lines[: len(lines) // 2] if line in {command.group for command in cli.COMMANDS.values()}
    ]
    assert headings == list(dict.fromkeys(command.group for command in cli.COMMANDS.values()))


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_of_a_command_has_an_example(name, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert f"\n  vaswani {name} --" in capsys.readouterr().out


def test_an_unknown_command_and_an_unknown_flag_are_refused_in_a_sentence(capsys):
    assert cli.main(["translte"]) == cli.main(["translate", "--model", "x", "--beans", "4"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: command 'translte' must be one of {', '.join(cli.COMMANDS)}",
        "error: unrecognized arguments: --beans 4",
    ]


def test_a_command_whose_extra_is_not_installed_says_which_it_needs(monkeypatch, capsys):
    for module in [
        name for name in sys.modules if name.startswith(("vaswani.cli.", "vaswani.scoring", "vaswani.eval"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert cli.main(["evaluate", "--help"]) == 1
    expected = (
        "error: vaswani evaluate needs the package sacrebleu, which is not installed: in a clone of this project, "
    )
    assert capsys.readouterr().err == f'{expected}pip install ".[score]"\n'


def test_translating_and_parsing_need_no_extra():
    extras = ("accelerate", "backports", "datasets", "evaluate", "matplotlib", "nltk", "sacrebleu", "sacremoses")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({extras})); import vaswani.cli.translate, vaswani.cli.parse"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_any_command_with_a_sentence_and_its_status(number, monkeypatch, capsys):
    def add_flags(_):
        os.kill(os.getpid(), number)
        pytest.fail("went past the signal")

    monkeypatch.setattr(attention, "add_flags", add_flags)
    assert cli.main(["attention"]) == 128 + number
    assert capsys.readouterr().err == f"\nEnded ({number.name}) before the work was done\n"


def test_work_has_a_status_of_its_own_or_none(capsys):
    assert [cli.exit_status(lambda status=status: status) for status in (None, 0, 3)] == [0, 0, 3]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("work", "status"),
    [
        ("exit_status(lambda: print('x'))", 1),  # Python keeps it back
        ("exit_status(lambda: print(100_000 * 'x'))", 1),  # and writes this at once
        ("main(['--help'])", 1),
        ("main(['translate', '--help'])", 0),  # argparse itself keeps quiet of what does not go into the pipe at once
    ],
)
def test_nothing_is_said_where_whoever_reads_has_had_enough(work, status):
    program = f"import sys; from vaswani.cli import exit_status, main; sys.exit({work})"
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as pipe:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=pipe, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (status, "")
