"""A measurement in a process of its own, with its peak memory."""

import re
import subprocess
import sys
import tempfile

from training.settings import ROOT
from vaswani.errors import UserError


ERROR = re.compile(r"(\[rank\d+\]: )?(error|[\w.]+Error): ")

# Linux counts what the parent held to the peak of a process that it starts. So a process of a few MB starts the one to
# be measured; its last argument is the descriptor to which it writes the exit status and the peak.
WATCHER = (
    "import os, subprocess, sys; "
    "process = subprocess.Popen(sys.argv[1:-1]); "
    "_, status, usage = os.wait4(process.pid, 0); "
    "os.write(int(sys.argv[-1]), f'{os.waitstatus_to_exitcode(status)} {usage.ru_maxrss}'.encode())"
)


def run_and_watch(command: list[str]) -> tuple[str, int]:
    """Run a process to its end; return its standard output and its peak memory in bytes.

    Raises
    ------
    UserError
        If it fails, with the first line of standard error that tells of an error, or else the last one.
    """
    with (
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
        tempfile.TemporaryFile() as told,
    ):
        watcher = [sys.executable, "-I", "-S", "-c", WATCHER, *command, str(told.fileno())]
        subprocess.run(watcher, stdout=output, stderr=errors, cwd=ROOT, pass_fds=[told.fileno()], check=False)
        told.seek(0)
        returncode, peak = map(int, told.read().split() or (1, 0))
        output.seek(0)
        errors.seek(0)
        if returncode:
            lines = [line for line in errors.read().splitlines() if line.strip()] or [f"exit {returncode}"]
            complaints = [line for line in lines if ERROR.match(line)]  # a launcher writes a table behind it
            raise UserError(f"a measurement failed: {(complaints or lines[-1:])[0].removeprefix('error: ')}")
        return output.read(), peak * (1 if sys.platform == "darwin" else 1024)
