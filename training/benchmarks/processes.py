"""A measurement in a process of its own, with its peak memory."""

import os
import subprocess
import sys
import tempfile

from training.settings import ROOT
from vaswani.errors import UserError


def run_and_watch(command: list[str]) -> tuple[str, int]:
    """Run a process to its end; return its standard output and its peak memory in bytes.

    Raises
    ------
    UserError
        If it fails, with the last line that it wrote to standard error.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            words = [line for line in errors.read().splitlines() if line.strip()] or [f"exit {process.returncode}"]
            raise UserError(f"a measurement failed: {words[-1].removeprefix('error: ')}")
        return output.read(), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
