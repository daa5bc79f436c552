"""What the published files may import, and the direction of imports between the two packages."""

import ast
import re
import sys
from pathlib import Path

import pytest

from training.settings import ROOT


PUBLISHED = sorted((ROOT / "src" / "vaswani" / "models").glob("*.py"))
PACKAGE = sorted((ROOT / "src").rglob("*.py"))


def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def absolute_packages(path: Path) -> set[str]:
    names = set()
    for node in imports(path):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif node.level == 0:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_published_files_import_only_each_other_torch_and_transformers(path):
    assert absolute_packages(path) <= {"torch", "transformers", "huggingface_hub"} | set(sys.stdlib_module_names)
    siblings = {file.stem for file in PUBLISHED}
    for node in imports(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert (node.level, node.module in siblings) == (1, True), ast.unparse(node)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_no_text_of_a_published_file_looks_like_a_relative_import(path):
    found = re.findall(r"^\s*from\s+\.(\S+)\s+import|^\s*import\s+\.(\S+)", path.read_text(), flags=re.MULTILINE)
    real = [node.module for node in imports(path) if isinstance(node, ast.ImportFrom) and node.level]
    assert [name for pair in found for name in pair if name] == real


def test_the_package_never_imports_what_trains():
    assert all("training" not in absolute_packages(path) for path in PACKAGE)
    assert (ROOT / "training") not in [parent for path in PACKAGE for parent in path.parents]


def test_pure_modules_import_nothing_of_the_project():
    for name in ("objective/loss", "objective/schedule", "data/batch_plan", "data/grammar/lexicon"):
        assert not absolute_packages(ROOT / "training" / f"{name}.py") & {"training", "vaswani"}
