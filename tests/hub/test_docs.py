"""What README says is there and works."""

import re
import shlex
import shutil
import tomllib

import pytest
from small_parser import TREES, save_parser

import training.pictures
import training.report
import training.table1
import training.table2
import training.table3
import training.table4
import vaswani.cli
from training.recipe import parse_settings
from training.settings import ROOT
from training.tables.parsing.rows import Row


README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def blocks(language: str, document: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document, flags=re.DOTALL)


@pytest.mark.smoke
def test_python_snippets_run(finished_run, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / "model").symlink_to(finished_run / "model")
    (tmp_path / "hub_configs").symlink_to(ROOT / "hub_configs")
    save_parser(tmp_path / "runs" / "parser-small" / "model")
    monkeypatch.chdir(tmp_path)
    assert len(blocks("python")) == 7
    names = {}
    for snippet in blocks("python"):
        exec(compile(snippet, "README.md", "exec"), names)
    said = capsys.readouterr().out
    assert said.count("translation_text") == 2
    assert "(DT The) " in said.splitlines()[-1]


@pytest.mark.parametrize(("name", "least"), [("README.md", 5), ("docs/fine-tuning.md", 3)])
def test_training_commands_are_valid(name, least, monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = [
        line for block in blocks("bash", (ROOT / name).read_text(encoding="utf-8")) for line in block.splitlines()
    ]
    commands = [line for line in lines if line.startswith("accelerate launch")]
    assert len(commands) >= least
    for command in commands:
        parse_settings(shlex.split(command, comments=True)[3:])


@pytest.mark.smoke
def test_console_commands_run(finished_run, tmp_path, monkeypatch, capfd):
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    shutil.copytree(finished_run / "model", tmp_path / "runs" / "demo" / "model")
    (tmp_path / "news.en").write_text("one two\n\nthree\n")
    for name, text in (("test.en", "one two"), ("test.de", "zwei eins"), ("old.de", "eins")):
        (tmp_path / name).write_text(f"{text}\n" * 3)
    save_parser(tmp_path / "runs" / "parser-small" / "model")
    (tmp_path / "sentences.txt").write_text("the dog sleeps.\n")
    (tmp_path / "my" / "treebank").mkdir(parents=True)
    for name in ("gold", "my/treebank/train", "my/treebank/validation", "my/treebank/test"):
        (tmp_path / f"{name}.mrg").write_text(f"{TREES[0]}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vaswani.cli.demo.serve", lambda interpreter, **_: None)  # tests/e2e/test_web_demo.py serves
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("vaswani ")]
    expected = ["translate"] * 2 + ["export"] * 3 + ["translate"] * 2 + ["attention"] * 3 + ["demo"] * 2
    expected += ["evaluate"] * 3 + ["parse"] + ["evaluate"] * 2
    assert [command.split()[1] for command in commands] == expected
    for command in commands:
        assert vaswani.cli.main(shlex.split(command.split(">")[0])[1:]) == 0
    assert (tmp_path / "news.de").read_text() == "zwei eins\n\ndrei\n"
    said = capfd.readouterr().out
    for text in ("Today's protocol", '"paper_bleu_without_split"', "by paired bootstrap", '"bracketing_f1"'):
        assert text in said
    assert (tmp_path / "runs" / "demo" / "space" / "app.py").exists()
    assert (tmp_path / "first.svg").read_text().startswith("<svg")


def test_install_commands_name_extras_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("pip install")]
    for command in commands:
        assert re.fullmatch(r'\.|"\.\[(\w+)\]"', command.split()[2])
        assert set(re.findall(r"\[(\w+)\]", command)) <= set(project["optional-dependencies"])
    assert len(commands) == 5


def test_report_commands_run(finished_run, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(finished_run)
    shutil.copytree(finished_run, tmp_path / "runs" / "mine", ignore=shutil.ignore_patterns("checkpoints"))
    monkeypatch.chdir(tmp_path)
    start = "python training/report.py "
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith(start)]
    assert len(commands) == 2
    for command in commands:
        training.report.main(shlex.split(command, comments=True)[2:])
    assert "Training of numbers and mine" in (tmp_path / "compared.html").read_text(encoding="utf-8")


def test_the_pictures_command_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = "python training/pictures.py"
    [command] = [line for block in blocks("bash") for line in block.splitlines() if line.startswith(start)]
    training.pictures.main(shlex.split(command)[2:])
    drawn = {path.name for path in (tmp_path / "docs").iterdir()}
    section = README.split("## The paper in pictures\n")[1].split("\n## ")[0]
    linked = set(re.findall(r"\(docs/([a-z-]+\.(?:svg|png))\)", section))
    assert len(linked) == 3
    assert linked <= drawn


def test_table_1_commands_are_valid():
    document = README + (ROOT / "training" / "table1.py").read_text(encoding="utf-8")
    commands = re.findall(r"^ *python training/table1\.py(.*)", document, flags=re.MULTILINE)
    assert len(commands) == 5
    for flags in commands:
        training.table1.make_grid(training.table1.parse(shlex.split(flags, comments=True)))


@pytest.mark.parametrize(
    ("table", "main", "row"),
    [("table2", training.table2.main, "transformer"), ("table3", training.table3.main, "A-h1")],
)
def test_commands_of_tables_2_and_3_are_valid(table, main, row, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    start = f"python training/{table}.py "
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith(start)]
    assert len(commands) >= 3
    for command in commands:
        main([*shlex.split(command, comments=True)[2:], "--list"])
    assert f"\n{row} " in capsys.readouterr().out


def test_table_4_commands_are_valid(monkeypatch):
    monkeypatch.chdir(ROOT)
    document = README + (ROOT / "training" / "table4.py").read_text(encoding="utf-8")
    commands = re.findall(r"^ *python training/table4\.py(.*)", document, flags=re.MULTILINE)
    assert len(commands) == 4
    for flags in commands:
        options, of_run = training.table4.parse(shlex.split(flags, comments=True))
        training.table4.make_run(Row(1.0), options, of_run)


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    mentioned = set(re.findall(r"`make ([a-z-]+)`", README + CONTRIBUTING))
    mentioned |= {line.split()[1] for block in blocks("bash") for line in block.splitlines() if line[:5] == "make "}
    assert {"test", "demo", "check"} <= mentioned <= targets


def test_the_tree_matches_what_is_there():
    tree = CONTRIBUTING.split("## The house\n\n```\n")[1].split("```")[0]
    listed, folders = set(), [ROOT]
    for line in tree.splitlines():
        name, depth = line.split()[0], (len(line) - len(line.lstrip())) // 2
        path = folders[depth] / name
        assert path.exists(), path
        folders[depth + 1 :] = [path]
        listed.add(path)
    modules = {path for folder in ("src", "training") for path in (ROOT / folder).rglob("*.py")}
    assert {path for path in listed if path.suffix == ".py"} == {path for path in modules if path.stem != "__init__"}


DOCUMENTS = sorted(str(path.relative_to(ROOT)) for pattern in ("*.md", "docs/*.md") for path in ROOT.glob(pattern))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_document_names_a_path_of_a_machine(name):
    assert not re.search(r"(/home/|/root/|/work/|/Users/|C:\\)", (ROOT / name).read_text(encoding="utf-8"))


def test_every_module_has_a_unit_file_in_its_place():
    for source, place in (("src/vaswani", "vaswani"), ("training", "training")):
        for path in (ROOT / source).rglob("*.py"):
            folder = ROOT / "tests" / "unit" / place / path.relative_to(ROOT / source).parent
            assert path.stem == "__init__" or (folder / f"test_{path.name}").exists(), path
