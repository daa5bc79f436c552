"""The sdist and the wheel: what they hold, and a wheel at work where nothing else of this project is."""

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from training.settings import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """Build both as pip does, from this tree."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return {path.suffix: path for path in folder.iterdir()}


def files() -> set[str]:
    """The modules, and the pages that some of them fill in."""
    paths = (path for ending in ("py", "html", "js") for path in (ROOT / "src" / "vaswani").rglob(f"*.{ending}"))
    return {str(path.relative_to(ROOT / "src")) for path in paths}


def test_the_wheel_holds_the_library_and_nothing_else(built):
    with zipfile.ZipFile(built[".whl"]) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    assert names - metadata == files()
    assert {Path(name).name for name in metadata} == {"METADATA", "WHEEL", "entry_points.txt", "LICENSE", "RECORD"}


def test_the_sdist_holds_what_builds_it_and_nothing_else(built):
    with tarfile.open(built[".gz"]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    documents = {"CHANGELOG.md", "LICENSE", "README.md", "PKG-INFO", "pyproject.toml", ".gitignore"}
    assert names == {f"src/{name}" for name in files()} | documents


@pytest.fixture(scope="module")
def clean(built, tmp_path_factory) -> Path:
    """Install the wheel into an environment that has its dependencies, but neither this tree nor an editable install.

    The dependencies are those of the environment that runs the tests: to install torch again would take minutes.
    """
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder)
    install = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, str(built[".whl"])], check=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # whose own .pth are not followed
    return folder / "bin"


def run(clean: Path, tmp_path: Path, *command: str) -> str:
    environment = {"PATH": str(clean), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [str(clean / command[0]), *command[1:]],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_wheel_translates_and_scores(clean, tmp_path):
    model = str(Path(__file__).parent / "published" / "7a61a2d" / "model")
    where = run(clean, tmp_path, "python", "-c", "import vaswani; print(vaswani.__file__)").strip()
    assert Path(where).is_relative_to(clean.parent)
    assert "evaluate" in run(clean, tmp_path, "vaswani", "--help")
    (tmp_path / "in.en").write_text("When does the boy look at the bags?\nThe dog sleeps.\n")
    run(clean, tmp_path, "vaswani", "translate", "--model", model, "--input", "in.en", "--output", "out.de")
    assert (tmp_path / "out.de").read_text().count("\n") == 2
    scores = ["--reference", "out.de", "--num_beams", "4", "--no_record", "--json"]
    said = run(clean, tmp_path, "vaswani", "evaluate", "--model", model, "--source", "in.en", *scores)
    assert '"exact_match": 100.0' in said


def test_the_package_alone_imports_no_extra(clean, tmp_path):
    program = "import sys, vaswani.loading, vaswani.translation; "
    program += "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = set(run(clean, tmp_path, "python", "-c", program).split())
    assert "transformers" in loaded  # which itself imports accelerate and datasets where they are
    assert not loaded & {"evaluate", "matplotlib", "sacrebleu", "sacremoses", "training"}
