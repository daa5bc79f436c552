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


# Each room may import those that stand to its right, and its own files. "training" and "vaswani" are the files that
# stand in no folder.
LIBRARY = {
    "models": (),
    "text": ("errors",),
    "scoring": ("text", "errors"),
    "parsing": ("text", "models", "errors"),
    "pictures": ("models", "errors"),
    "registration": (),
    "results": (),
    "tokenization": ("errors",),
    "files": ("errors",),
    "shortlists": ("files", "errors"),
    "workers": ("models", "errors"),
    "loading": ("models", "errors"),
    "translation": ("workers", "models", "errors"),
    "ensemble": ("models", "errors"),
    "memory": ("translation", "models"),
    "interop": ("translation", "loading", "workers", "models", "errors"),
    "evaluation": ("results", "scoring", "parsing", "translation", "models", "errors"),
    "card": ("files", "results"),
    "record": ("card", "results", "errors"),
    "demo": ("pictures", "translation", "loading", "registration", "text", "models", "files", "errors"),
    "cli": (
        "demo",
        "interop",
        "record",
        "memory",
        "ensemble",
        "evaluation",
        "results",
        "translation",
        "loading",
        "workers",
        "shortlists",
        "scoring",
        "parsing",
        "pictures",
        "models",
        "text",
        "interruption",
        "files",
        "errors",
    ),
}
SETTINGS = ("settings", "recipe", "machine")
TRAINING = {
    "cpu": (),
    "objective": ("cpu",),
    "data": SETTINGS,
    "gpu": ("objective", "data"),
    "checkpoints": ("data", *SETTINGS),
    "trainer": ("checkpoints", "gpu", "cpu", "objective", "data", *SETTINGS),
    "publishing": ("data", *SETTINGS),
    "explaining": ("objective",),
    "reports": ("trainer", "tables", *SETTINGS),
    "tables": ("trainer", "data", *SETTINGS),
    "benchmarks": ("trainer", "data", "tables", "reports", *SETTINGS),
    "settings": (),
    "machine": ("settings",),
    "recipe": ("settings",),
}


def rooms_of(path: Path, package: Path) -> set[str]:
    """Return the rooms of its own package from which a file imports."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    found = set()
    for node in imports(path):
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = list(parts[: -node.level]) if node.level else []
            whole = [*base, *(node.module.split(".") if node.module else [])]
            names = [".".join([*whole, name]) for name in names]
        found |= {name.split(".")[1] for name in names if name.startswith(f"{package.name}.")}
    return found


@pytest.mark.parametrize(
    ("package", "room", "below"),
    [("src/vaswani", room, below) for room, below in LIBRARY.items()]
    + [("training", room, below) for room, below in TRAINING.items()],
)
def test_rooms_import_only_what_is_below_them(package, room, below):
    place = ROOT / package / room
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    for path in files:
        assert rooms_of(path, ROOT / package) <= {room, *below}, path


def test_every_room_has_its_rule():
    for package, rules in (("src/vaswani", LIBRARY), ("training", TRAINING)):
        rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert rooms <= set(rules)
        # The published code alone must lie flat, however many files it has.
        assert all(len(list((ROOT / package / room).glob("[!_]*.py"))) <= 10 for room in rooms - {"models"})


def test_the_package_never_imports_what_trains():
    assert all("training" not in absolute_packages(path) for path in PACKAGE)


def test_pure_modules_import_nothing_of_the_project():
    assert "vaswani" not in absolute_packages(ROOT / "training" / "objective" / "loss.py")
    for name in ("objective/divergence", "objective/schedule", "data/batch_plan", "data/grammar/lexicon"):
        assert not absolute_packages(ROOT / "training" / f"{name}.py") & {"training", "vaswani"}
