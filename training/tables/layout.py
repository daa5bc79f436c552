"""Cells of text as a table: aligned for a terminal, or in Markdown. A title may have several lines."""

from collections.abc import Iterable, Sequence


def align(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table in columns as wide as their widest cell: the first flush left, the others flush right."""
    heads = [title.split("\n") for title in titles]
    height = max(len(head) for head in heads)
    heading = zip(*([""] * (height - len(head)) + head for head in heads), strict=True)
    lines = [*heading, *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    aligned = []
    for first, *others in lines:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        aligned.append("  ".join(cells).rstrip())
    return "\n".join(aligned)


def markdown(titles: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table in Markdown."""
    lines = ([title.replace("\n", " ") for title in titles], ["---"] * len(titles), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
