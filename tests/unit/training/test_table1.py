import csv
import re

import pytest
import torch

from training import table1
from training.tables.complexity import clock, measuring
from training.tables.layout import for_terminal
from vaswani.errors import UserError


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layers", "self-atention"], "unknown layer 'self-atention': the nearest known one is 'self-attention'"),
        (["--layers", ","], "layers must name at least one of self-attention"),
        (["--kernels", "3,4"], "kernels=4 must be odd, so that a position is in the middle of its kernel"),
        (["--kernels", "1"], "kernels: '1' must be numbers of at least 3"),
        (["--restrictions", "0,32"], "restrictions: '0,32' must be numbers of at least 1"),
        (["--restrictions=-4"], "restrictions: '-4' must be numbers of at least 1"),
        (["--restrictions", "65"], "restrictions=65 must be at most the shortest of lengths, 64"),
        (["--lengths", "8,128", "--restrictions", "2"], "kernels=9 must be at most the shortest of lengths, 8"),
        (["--lengths", "1,64"], "lengths: '1,64' must be numbers of at least 2"),
        (["--widths", "0"], "widths: '0' must be numbers of at least 1"),
        (["--widths", "64,x"], "widths: '64,x' must be numbers with commas between"),
        (["--lengths", ""], "lengths: '' must be numbers with commas between"),
        (["--lengths", "64,,128"], "lengths: '64,,128' must be numbers with commas between"),
        (["--batch_size", "0"], "batch_size: '0' must be a whole number of at least 1$"),
        (["--threads", "0"], "threads: '0' must be a whole number of at least 1"),
        (["--threads", "100000"], "threads=100000 must be at most .*, the cores of this machine"),
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["--length", "64"], "unrecognized arguments: --length 64"),
    ],
)
def test_bad_input_is_refused_in_one_sentence_before_anything_is_measured(flags, message, tmp_path):
    with pytest.raises(UserError, match=message) as refusal:
        table1.main(["--output_dir", str(tmp_path / "out"), *flags])
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="device='cuda' needs a GPU, and torch finds none: leave it out"):
        table1.main(["--device", "cuda"])


def test_an_output_dir_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"output_dir='.*file/out' cannot be written to"):
        table1.main(["--output_dir", str(tmp_path / "file" / "out")])


def test_numbers_are_sorted_and_each_is_measured_once():
    grid = table1.make_grid(table1.parse(["--lengths", "256,64, 128,64", "--layers", "lstm"]))
    assert grid.lengths == [64, 128, 256]
    assert [row.name for row in grid.rows] == ["lstm"]


def test_it_leaves_four_files_that_say_how_they_were_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(clock, "SECONDS", 0.0)
    monkeypatch.setattr(measuring, "KEY_WIDTHS", (4, 16))
    flags = ["--layers", "self-attention,recurrent", "--lengths", "16,32", "--widths", "16", "--restrictions", "8"]
    flags += ["--device", "cpu", "--threads", "1", "--batch_size", "3", "--output_dir", str(tmp_path / "new" / "out")]
    table1.main(flags)
    folder = tmp_path / "new" / "out"
    assert sorted(path.name for path in folder.iterdir()) == ["table1.csv", "table1.md", "table1.png", "table1.svg"]
    text = (folder / "table1.md").read_text(encoding="utf-8")
    said = capsys.readouterr().out
    assert said == for_terminal(text) + "\n"
    assert max(map(len, said.splitlines())) <= max(100, len(" ".join(flags)))
    assert f"`python training/table1.py {' '.join(flags)}`" in text
    assert re.search(
        rf"cores?, 1 thread, float32, torch {re.escape(torch.__version__)}, 20\d\d-\d\d-\d\d\. Batches of 3", text
    )
    assert "| self-attention / recurrent (Elman) | 16 | 16 |" in text
    with (folder / "table1.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    flops = {(row["layer"], row["n"]): float(row["value"]) for row in rows if row["quantity"] == "forward_flops"}
    assert flops == {
        ("self-attention", "16"): 3 * 4 * 16**2 * 16,
        ("self-attention", "32"): 3 * 4 * 32**2 * 16,
        ("recurrent", "16"): 3 * 4 * 16 * 16**2,
        ("recurrent", "32"): 3 * 4 * 32 * 16**2,
    }
