import csv
import dataclasses
import math

import pytest

from training.tables.complexity import measuring, report
from training.tables.complexity.fits import exponents
from training.tables.complexity.measuring import UNITS
from training.tables.complexity.report import digits, line, place, power_law, write_markdown, write_report
from training.tables.complexity.rows import ROWS, Size


@pytest.fixture(autouse=True)
def counted_as_in_the_records(monkeypatch):
    counted = measuring.COUNTED | {"n": (4, 8, 16)}
    monkeypatch.setattr(measuring, "COUNTED", counted)
    monkeypatch.setattr(report, "COUNTED", counted)


def tables(text: str) -> list[list[list[str]]]:
    """Return the tables of a Markdown text as cells, without the line below the titles."""
    found = [paragraph.splitlines() for paragraph in text.split("\n\n") if paragraph.startswith("|")]
    return [[[cell.strip() for cell in line[1:-1].split("|")] for line in [rows[0], *rows[2:]]] for rows in found]


def test_counts_stand_beside_the_papers(grid, records):
    text = write_markdown(records, grid, "on a machine")
    complexity, *_ = tables(text)
    titles, *rows = complexity
    assert titles[6] == "hops here, n = 4, 8, 16"
    assert {row[0]: row[1:] for row in rows} == {
        "self-attention": ["O(n² d)", "n^2.00 d^1.00", "O(1)", "4", "O(1)", "1, 1, 1", "n^0.00"],
        "self-attention with projections": [
            *("O(n² d + n d²) *", "n^1.66 d^1.26", "O(1) *", "6", "O(1) *", "1, 1, 1", "n^0.00")
        ],
        "restricted self-attention": [
            *("O(r n d)", "n^1.00 d^1.00 r^0.42", "O(1)", "6", "O(n/r)", "1, 2, 4", "n^1.00 r^-1.00")
        ],
        "self-attention in blocks": [
            *("O(r n d) *", "n^1.00 d^1.00 r^1.00", "O(1) *", "5", "∞ *", "1, 1, ∞", "never beyond r")
        ],
        "recurrent (Elman)": ["O(n d²)", "n^1.00 d^2.00", "O(n)", "3 n + 1", "O(n)", "4, 8, 16", "n^1.00"],
        "recurrent (LSTM)": ["O(n d²)", "n^1.00 d^2.00", "O(n)", "7 n + 1", "O(n)", "4, 8, 16", "n^1.00"],
        "convolution, contiguous": [
            *("O(k n d²)", "n^1.00 d^2.00 k^1.00", "O(1)", "1", "O(n/k)", "2, 4, 8", "n^1.00 k^-1.20")
        ],
        "convolution, dilated": [
            *("O(k n d²)", "n^1.00 d^2.00 k^1.00", "O(1)", "1", "O(log_k n)", "2, 2, 3", "1.16 log_k n + 0.83")
        ],
        "convolution, separable": [
            *("O(k n d + n d²)", "n^1.00 d^1.69 k^0.20", "O(1)", "3", "O(n/k)", "2, 4, 8", "n^1.00 k^-1.20")
        ],
    }


def test_costs_are_those_that_were_measured_in_other_units(grid, records):
    _, (titles, *rows), *_ = tables(write_markdown(records, grid, ""))
    size = Size(64, 16, k=5)
    figures = {r.quantity: r.value for r in records if (r.layer, r.size) == ("dilated", size)}
    (cells,) = [dict(zip(titles, row, strict=True)) for row in rows if row[0] == "convolution, dilated"]
    assert cells["size"] == "n 64, d 16, k 5"
    assert cells["GFLOP"] == digits(2 * 2 * 5 * 64 * 16**2 / 1e9)
    assert cells["GFLOP f+b"] == digits(3 * 2 * 2 * 5 * 64 * 16**2 / 1e9)
    assert cells["ms"] == digits(figures["forward_seconds"] * 1e3)
    assert cells["ms f+b"] == digits(figures["forward_backward_seconds"] * 1e3)
    assert cells["MB"] == digits(figures["forward_bytes"] / 1e6)
    assert cells["MB f+b"] == digits(figures["forward_backward_bytes"] / 1e6)
    for unit, quantity in (("ms", "seconds"), ("MB", "bytes")):
        fitted = exponents(records, f"forward_backward_{quantity}", ROWS["dilated"], size)
        assert cells[f"{unit} grow as"] == power_law(fitted)
    assert len(rows) == len(ROWS)
    assert len(set(titles)) == len(titles)


def test_self_attention_has_more_operations_than_recurrence_from_n_equal_to_d(grid):
    wide = dataclasses.replace(grid, widths=(32, 64), rows=[ROWS["self-attention"], ROWS["recurrent"]])
    flops = [
        measuring.Record(quantity, name, Size(n, d), cost(n, d) * (factor if name == "recurrent" else 1))
        for quantity, factor in (("forward_flops", 1), ("forward_seconds", 1.25), ("forward_backward_seconds", 1.5))
        for name, cost in (("self-attention", lambda n, d: n * n * d), ("recurrent", lambda n, d: n * d * d))
        for n in wide.lengths
        for d in wide.widths
    ]
    (titles, *rows) = tables(report.crossing_table(flops, wide))[0]
    assert titles == ["layers", "d", "n by FLOPs", "n by time", "n by time f+b"]
    pair = "self-attention / recurrent (Elman)"
    assert rows == [[pair, "32", "32", "40", "48"], [pair, "64", "64", "80", "96"]]


def test_layers_that_were_not_measured_are_not_compared(grid, records):
    few = dataclasses.replace(grid, rows=[ROWS["self-attention"], ROWS["separable"]])
    text = write_markdown(records, few, "")
    assert "stops being cheaper" not in text
    assert len(tables(text)) == 3
    assert "stops being cheaper" in write_markdown(records, grid, "")


def test_the_files_hold_what_was_measured(grid, records, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "draw", lambda records, grid, paths: [path.touch() for path in paths])
    text = write_report(records, grid, "`a command`\n\na machine", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table1.csv", "table1.md", "table1.png", "table1.svg"]
    assert (tmp_path / "table1.md").read_text(encoding="utf-8") == text
    assert text.startswith("# Table 1\n\n`a command`\n\na machine\n\n## Complexity")
    with (tmp_path / "table1.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        assert (row["quantity"], row["unit"], row["layer"]) == (record.quantity, UNITS[record.quantity], record.layer)
        assert [row[axis] for axis in "ndkr"] == ["" if v is None else str(v) for v in vars(record.size).values()]
        assert float(row["value"]) == record.value


def test_every_row_of_the_softmax_table_is_one_d_k(grid, records):
    *_, (titles, *rows) = tables(write_markdown(records, grid, ""))
    assert [row[0] for row in rows] == ["4", "64"]
    found = {r.quantity: r.value for r in records if (r.layer, r.size.d) == ("additive", 64)}
    for title, quantity in (
        ("variance", "score_variance"),
        ("entropy", "softmax_entropy"),
        ("gradient (median)", "softmax_gradient_median"),
        ("gradient (mean)", "softmax_gradient_mean"),
    ):
        assert rows[1][titles.index(f"{title}, additive")] == digits(found[quantity])


def test_laws_are_written_as_one_reads_them():
    assert power_law({"n": 2.0, "d": 0.996, "r": -0.0012}) == "n^2.00 d^1.00 r^0.00"
    assert line([(2, 7.0), (4, 13.0)]) == "3 n + 1"
    assert line([(2, 7.0), (4, 7.0)]) == "7"
    assert line([(2, 7.0), (4, 9.0), (6, 9.0)]) == "7, 9, 9"
    assert [digits(value) for value in (1029.6, 99.96, 4.0, 0.000463)] == ["1,030", "100", "4.00", "0.000463"]
    assert [place(n, (64, 2048)) for n in (0, 1234.4, math.inf)] == ["< 64", "1,234", "> 2,048"]
