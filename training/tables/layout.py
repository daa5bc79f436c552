"""Cells as a table: aligned for a terminal, in Markdown, or as a file of comma-separated values."""

import csv
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


WIDTH = 100  # columns of a terminal that are used


def align(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table of at most `WIDTH` characters: words, and the first column, flush left; numbers flush right.

    A title takes as many lines as make it as narrow as its cells. Columns that do not fit stand below the others,
    beside the first column again.
    """
    cells = list(rows)
    columns = [_align_column(title, [row[place] for row in cells], place == 0) for place, title in enumerate(titles)]
    height = max(map(len, columns))
    first, *others = [[" " * len(column[0])] * (height - len(column)) + column for column in columns]
    tables = [[first]]
    for column in others:
        if sum(len(beside[0]) + 2 for beside in tables[-1]) + len(column[0]) > WIDTH and len(tables[-1]) > 1:
            tables.append([first])
        tables[-1].append(column)
    lines = (["  ".join(line).rstrip() for line in zip(*table, strict=True)] for table in tables)
    return "\n\n".join("\n".join(filter(None, table)) for table in lines)


def _align_column(title: str, cells: Sequence[str], is_first: bool) -> list[str]:
    """Return the lines of a title, then the cells, all of one width."""
    is_text = is_first or any(cell[:1].isalpha() for cell in cells)
    longest = max(map(len, [*cells, *title.split()]), default=0)
    lines = [*textwrap.wrap(title, max(1, longest)), *cells]
    return [line.ljust(longest) if is_text else line.rjust(longest) for line in lines]


def markdown(titles: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table in Markdown."""
    lines = (titles, ["---"] * len(titles), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows under the names of all their columns; what a row lacks stays empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


def for_terminal(text: str) -> str:
    """Lay out paragraphs and tables of `markdown` for a terminal: aligned, and at most `WIDTH` wide."""
    blocks = []
    for block in text.strip().split("\n\n"):
        if not block.startswith("| "):
            blocks.append(textwrap.fill(block, WIDTH))
            continue
        titles, _, *rows = (line.removeprefix("| ").removesuffix(" |").split(" | ") for line in block.split("\n"))
        blocks.append(align(titles, [row + [""] * (len(titles) - len(row)) for row in rows]))  # rows may end early
    return "\n\n".join(blocks)
