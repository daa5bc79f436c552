import os
import subprocess
import sys

import pytest
from hub_stand_in import hub_stand_in

from training.settings import ROOT


pytestmark = pytest.mark.smoke

PUSH = """
import sys
from pathlib import Path
from training.publishing.folder import push
print(push(Path(sys.argv[1]), "me/model"))
"""


def test_the_folder_that_was_published_is_the_folder_that_is_pushed(tmp_path):
    for name in ("README.md", "config.json", "model.safetensors", "modeling_vaswani.py"):
        (tmp_path / name).write_bytes(b"---\nlicense: apache-2.0\n---\n" + name.encode())
    with hub_stand_in() as (address, files):
        environment = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_none", "HF_HUB_DISABLE_XET": "1", "PATH": ""}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])  # this tree, installed or not
        command = [sys.executable, "-c", PUSH, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert files == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert address in done.stdout
