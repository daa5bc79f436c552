"""Trees as a picture: constituents above their words, as SVG."""

from collections.abc import Mapping

from vaswani.models.trees_vaswani import Tree

from .look import LIGHT, css, follow_the_theme, xml_text


FONT, CHARACTER, LEVEL, GAP = 14, 8.5, 42, 18  # size, width of a character, height of a level, space between words
STYLE = css() + follow_the_theme(
    f"text{{font:{FONT}px sans-serif;text-anchor:middle;fill:{LIGHT['ink']}}}line{{stroke:{LIGHT['faint']}}}"
    f".paper{{fill:{LIGHT['paper']}}}.title{{text-anchor:start;font-weight:bold}}"
    f".label{{fill:{LIGHT['blue']};font-weight:bold}}.tag{{fill:{LIGHT['faint']}}}"
)


def draw_trees(trees: Mapping[str, Tree]) -> str:
    """Draw trees below one another, each under its title.

    Returns
    -------
    str
        An SVG document, light or dark as its reader prefers. The words of a tree stand in one line.
    """
    parts, width, top = [], 0.0, 0.0
    for title, tree in trees.items():
        drawn, tree_width, height = draw_tree(tree, top + 2 * FONT)
        parts += [f'<text class="title" x="{GAP}" y="{top + 1.5 * FONT}">{xml_text(title)}</text>', *drawn]
        width, top = max(width, tree_width), top + 2 * FONT + height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{top:.0f}" '
        f'viewBox="0 0 {width:.0f} {top:.0f}"><style>{STYLE}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def draw_tree(tree: Tree, top: float) -> tuple[list[str], float, float]:
    """Draw a tree from `top` downwards; return its elements, width and height.

    A constituent stands as low as its own can, and its line goes down to each child right above that one: so no two
    lines cross.
    """
    floor = top + FONT + LEVEL * height(tree)
    elements, left = [], float(GAP)
    open_places: list[list[tuple[float, float]]] = [[]]  # of the children of each open constituent

    def place(text: str, css: str, x: float, y: float) -> None:
        elements.append(f'<text class="{css}" x="{x:.1f}" y="{y:.1f}">{xml_text(text)}</text>')

    def line(x1: float, y1: float, x2: float, y2: float) -> None:
        elements.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    for kind, node in tree.walk():
        if kind == "open":
            open_places.append([])
        elif kind == "leaf":
            word = str(node.children[0])
            size = CHARACTER * max(len(word), len(node.label))
            x, left = left + size / 2, left + size + GAP
            place(node.label, "tag", x, floor)
            place(word, "word", x, floor + 1.5 * FONT)
            open_places[-1].append((x, floor))
        else:
            children = open_places.pop()
            x, y = (children[0][0] + children[-1][0]) / 2, min(child for _, child in children) - LEVEL
            bar = y + FONT
            line(x, y + 4, x, bar)
            line(children[0][0], bar, children[-1][0], bar)
            for below, child in children:
                line(below, bar, below, child - FONT)
            place(node.label, "label", x, y)
            open_places[-1].append((x, y))
    return elements, left, floor + 3 * FONT - top


def height(tree: Tree) -> int:
    """Return how many constituents lie above one another."""
    heights = [0]
    for kind, _ in tree.walk():
        if kind == "open":
            heights.append(0)
        elif kind == "close":
            below = heights.pop()
            heights[-1] = max(heights[-1], below + 1)
    return heights[0]
