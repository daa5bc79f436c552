"""Fetch transformers' own tests of one release, by default the installed one: ``make hf-suite``.

They are in its source distribution; ``tests/hub/test_transformers_suite.py`` runs those that test a model.
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path


CACHE = Path(__file__).parents[1] / ".cache"


def folder_of(version: str) -> Path:
    """Return where the tests of a release are put."""
    return CACHE / f"transformers-{version}" / "tests"


def fetch(version: str) -> None:
    """Put the tests of a release into `.cache`, or say that they could not be fetched."""
    if folder_of(version).exists():
        return
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as download:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "transformers"]
        done = subprocess.run([*command, "--dest", download, f"transformers=={version}"], check=False)
        if done.returncode:
            print(f"the tests of transformers {version} could not be fetched: they will be skipped", flush=True)
            return
        with tarfile.open(next(Path(download).glob("*.tar.gz"))) as archive:
            tests = [member for member in archive if member.name.startswith(f"transformers-{version}/tests/")]
            # Python 3.11.2, which is Debian 12's, knows no filters yet.
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            archive.extractall(download, members=tests)
        (Path(download) / f"transformers-{version}").rename(folder_of(version).parent)


if __name__ == "__main__":
    fetch(*sys.argv[1:] or [metadata.version("transformers")])
