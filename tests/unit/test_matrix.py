"""The matrix of releases, on an index of small packages that stand for transformers and torch."""

import sys
import zipfile

import matrix
import pytest
from packaging.version import Version


TORCH = matrix.HERE["torch"].public
LISTED = {
    "transformers": ["4.57.6", "5.17.0", "5.17.1", "5.18.0", "6.0.0"],
    "torch": ["2.10.0", "2.11.0", "2.11.0+cpu", "2.11.1", "2.12.1"],
}
PROJECT = """
[project]
dependencies = ["torch>=2.11", "transformers>=5.17,<6"]
[tool.pytest.ini_options]
markers = ["smoke: runs"]
"""
TESTS = """
import pytest
import transformers
@pytest.mark.smoke
def test_of_the_release(subtests):
    with subtests.test():
        assert transformers.NAME == "stands for transformers 5.17.0"
@pytest.mark.smoke
def test_that_skips():
    pytest.skip()
def test_that_is_not_asked_for():
    assert False
"""


def write_wheel(folder, package, version):
    with zipfile.ZipFile(folder / f"{package}-{version}-py3-none-any.whl", "w") as wheel:
        information = f"{package}-{version}.dist-info"
        wheel.writestr(f"{package}/__init__.py", f"NAME = 'stands for {package} {version}'")
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """Return the folder of a project with three tests, and let pip find the packages that stand for the two."""
    index = tmp_path / "index"
    index.mkdir()
    for package, versions in LISTED.items():
        for version in versions:
            write_wheel(index, package, version)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(index), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "test_project.py").write_text(TESTS)
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    monkeypatch.setattr(matrix.transformers_suite, "fetch", lambda version: None)
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path


def test_rows_are_the_promised_minor_releases_and_the_oldest_two(monkeypatch):
    monkeypatch.setattr(matrix, "HERE", {"transformers": Version("5.18.0"), "torch": Version("2.13.0+cpu")})
    rows = [(str(row.transformers), str(row.torch)) for row in matrix.all_rows()]
    assert rows == [
        ("5.17.0", "2.13.0+cpu"),
        ("5.17.1", "2.13.0+cpu"),
        ("5.18.0", "2.13.0+cpu"),
        ("5.18.0", "2.11.0+cpu"),
        ("5.18.0", "2.12.1"),
        ("5.17.0", "2.11.0"),
    ]


def test_a_release_is_installed_and_tested_and_what_the_index_lacks_fails_nothing(capfd):
    assert matrix.main(["oldest", "torch==2.12.1", "torch==2.14.0"]) == 0
    table = capfd.readouterr().out.split("\n\n")[-1]
    assert f"| 5.17.0 | {matrix.HERE['torch']} |" in table
    assert "| 1 | 0 | 1 | " in table
    assert "not run: the index has torch 2.12.1 for CUDA only" in table
    assert "not run: the index has no torch 2.14.0" in table


def test_a_build_for_cpus_is_preferred_and_kept(monkeypatch):
    row = matrix.named_row("torch==2.11.0")
    assert matrix.installed(matrix.environment(row))["torch"] == "2.11.0+cpu"
    monkeypatch.setattr(matrix, "listed", None)  # it would be asked for what to install
    assert matrix.installed(matrix.environment(row))["torch"] == "2.11.0+cpu"


def test_a_failed_test_is_named_and_fails_the_job(capfd):
    assert matrix.main(["transformers==5.18.0"]) == 1
    table = capfd.readouterr().out.split("\n\n")[-1]
    assert "| 0 | 1 | 1 | " in table
    assert f"failed on transformers 5.18.0, torch {TORCH}: test_project::test_of_the_release" in table


def test_a_release_that_is_none_is_refused():
    with pytest.raises(SystemExit, match="'transformers' must be 'oldest', 'transformers==VERSION' or"):
        matrix.main(["transformers"])
