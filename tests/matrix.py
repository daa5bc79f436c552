"""Run the smoke tests on every release that is promised: ``make test-matrix``.

A row of the matrix is a release of transformers and one of torch. The rows are the newest patch of each minor release
of transformers that the index has, with the torch of this environment; the same for torch, with this environment's
transformers; and the oldest of both. The promise is read from pyproject.toml, the index is the one that pip is
configured for (``pip config``, ``PIP_EXTRA_INDEX_URL``, ...).

Each row has an environment in ``.cache/matrix``, laid over this one: it holds the two releases and what they need in
another version, and finds everything else here. It is kept, and used as it is where it has the releases already.
torch is installed as a build for CPUs only; a row that the index has no such build for is reported and fails nothing.
"""

import argparse
import re
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import transformers_suite
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version


ROOT = Path(__file__).parents[1]
SHOWN = ("transformers", "torch", "huggingface_hub", "tokenizers")
HERE = {package: Version(metadata.version(package)) for package in ("torch", "transformers")}


@dataclass(frozen=True)
class Row:
    """The releases that a row is about."""

    transformers: Version
    torch: Version

    @property
    def folder(self) -> Path:
        return ROOT / ".cache" / "matrix" / f"transformers-{self.transformers}-torch-{self.torch.public}"

    def __str__(self) -> str:
        return f"transformers {self.transformers}, torch {self.torch.public}"


@dataclass
class Result:
    """What came of a row: counts of tests, or why there are none."""

    row: Row
    versions: dict[str, str]
    passed: int = 0
    failed: tuple[str, ...] = ()
    skipped: int = 0
    seconds: float = 0
    remark: str = ""


class Unavailable(Exception):
    """The index has no such release, or none for CPUs."""


def promised(package: str) -> SpecifierSet:
    """Return the releases of a package that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(r.specifier for r in map(Requirement, project["dependencies"]) if r.name == package)


def oldest(package: str) -> Version:
    """Return the oldest promised release of a package."""
    bound = Version(next(s.version for s in promised(package) if s.operator == ">="))
    return Version(f"{bound.major}.{bound.minor}.{bound.micro}")


def listed(package: str) -> list[Version]:
    """Return the releases that pip's index has for this Python and platform."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^Available versions: (.*)$", done.stdout, flags=re.MULTILINE)
    return [Version(version) for version in found[1].split(", ")] if found else []


def is_for_cpus(package: str, version: Version) -> bool:
    """Return whether a release is one that brings no CUDA: on Linux, those of torch say so by a local version."""
    return package != "torch" or sys.platform != "linux" or version.local == "cpu"


def newest_of_each_minor(package: str) -> list[Version]:
    """Return the newest patch of each minor release that is promised and listed, builds for CPUs first."""
    minors: dict[tuple[int, ...], list[Version]] = {}
    for version in promised(package).filter(listed(package)):
        minors.setdefault(version.release[:2], []).append(version)
    return [max(minors[minor], key=lambda v: (is_for_cpus(package, v), v)) for minor in sorted(minors)]


def all_rows() -> list[Row]:
    """Return the rows of each promised minor release of transformers, then of torch, and of the oldest of both."""
    rows = [Row(oldest("transformers"), HERE["torch"])]
    rows += [Row(version, HERE["torch"]) for version in newest_of_each_minor("transformers")]
    rows += [Row(HERE["transformers"], version) for version in newest_of_each_minor("torch")]
    rows += [Row(oldest("transformers"), oldest("torch"))]
    return list(dict.fromkeys(rows))


def named_row(release: str) -> Row:
    """Return the row of one requirement, such as ``torch==2.12.1``, or of ``oldest``."""
    if release == "oldest":
        return Row(oldest("transformers"), HERE["torch"])
    package, _, version = release.partition("==")
    if package not in HERE or not version:
        raise SystemExit(f"{release!r} must be 'oldest', 'transformers==VERSION' or 'torch==VERSION'")
    return Row(**HERE | {package: Version(version)})


def installed(python: Path) -> dict[str, str]:
    """Return the versions of the packages in `SHOWN` that an environment finds."""
    code = "import sys; from importlib import metadata; print(*map(metadata.version, sys.argv[1:]))"
    done = subprocess.run([python, "-c", code, *SHOWN], stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(SHOWN, done.stdout.split(), strict=True))


def install(python: Path, package: str, version: Version) -> None:
    """Install a release into an environment, with what it needs in another version.

    Raises
    ------
    Unavailable
        If the index does not have it, or only with CUDA.
    """
    builds = [build for build in listed(package) if build.public == version.public]
    if not builds:
        raise Unavailable(f"the index has no {package} {version}")
    if not is_for_cpus(package, max(builds)):
        raise Unavailable(f"the index has {package} {version.public} for CUDA only")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", f"{package}=={max(builds)}"]
    subprocess.run(command, check=True)


def environment(row: Row) -> Path:
    """Return the Python of a row's environment, which is made where it is missing."""
    python = row.folder / "bin" / "python"
    if not python.exists():
        venv.create(row.folder, symlinks=True)
        site_packages = sysconfig.get_path("purelib", vars={"base": str(row.folder)})
        path_file = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (Path(site_packages) / "the_environment_below.pth").write_text(path_file)
    for package in HERE:
        version = getattr(row, package)
        if Version(installed(python)[package]).public != version.public:
            install(python, package, version)
    return python


def run_tests(row: Row) -> Result:
    """Run the smoke tests in a row's environment, with transformers' own suite of its release."""
    python = environment(row)
    versions = installed(python)
    transformers_suite.fetch(versions["transformers"])
    report = row.folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-m", "smoke", "-q", "--tb=short", "--disable-warnings", f"--junitxml={report}"]
    command += ["--numprocesses=2", "--dist=loadfile"]
    started = time.monotonic()
    status = subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT, check=False).returncode
    result = Result(row, versions, seconds=time.monotonic() - started)
    if report.exists():
        count(report, result)
    if status and not result.failed:
        result.failed, result.remark = ("pytest",), f"pytest ended with status {status}"
    return result


def count(report: Path, result: Result) -> None:
    """Read pytest's report of what passed, failed and was skipped."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failures = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    result.failed = tuple(sorted({f"{case.get('classname')}::{case.get('name')}" for case in failures}))
    result.skipped = sum(case.find("skipped") is not None for case in cases)
    result.passed = len(cases) - result.skipped - len(failures)


def try_row(row: Row) -> Result:
    """Run a row's tests, or say why they cannot be run."""
    asked = {"transformers": str(row.transformers), "torch": row.torch.public}
    try:
        return run_tests(row)
    except Unavailable as reason:
        return Result(row, asked, remark=f"not run: {reason}")
    except subprocess.CalledProcessError as error:
        return Result(row, asked, failed=("installation",), remark=f"not installed: pip ended with {error.returncode}")


def table(results: Iterable[Result]) -> str:
    """Return the results as a table in Markdown, and under it the tests that failed."""
    columns = [*SHOWN, "passed", "failed", "skipped", "seconds", "remark"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for result in results:
        counts = [result.passed, len(result.failed), result.skipped, round(result.seconds)]
        shown = map(str, counts) if result.seconds else [""] * len(counts)
        cells = [*(result.versions.get(package, "") for package in SHOWN), *shown, result.remark]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"failed on {result.row}: {name}" for result in results for name in result.failed]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the rows that are asked for, print their table, and return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "releases",
        nargs="*",
        metavar="RELEASE",
        help="run only these: transformers==5.17.0, torch==2.12.1, ...; `oldest` is the oldest promised transformers",
    )
    releases = parser.parse_args(arguments).releases
    rows = [named_row(release) for release in releases] or all_rows()
    results = []
    for number, row in enumerate(rows, start=1):
        print(f"[{number}/{len(rows)}] {row}", flush=True)
        results.append(try_row(row))
        if results[-1].remark:
            print(results[-1].remark, flush=True)
    print(f"\n{table(results)}", flush=True)
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main())
