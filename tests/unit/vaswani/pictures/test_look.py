"""The colours, as people see them: contrast as WCAG has it, colour blindness as Machado et al. (2009) simulate it."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from training.settings import ROOT
from vaswani.pictures.look import DARK, LIGHT, SERIES, css, follow_the_theme, stand_alone


VISIONS = {
    "all colours": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
# A colour that is written down: #20f, #2054ea, tab:blue, C0, rgb(...), color="black", a grey such as "0.7".
LITERAL = re.compile(
    r"""[\s:"'(,]\#(?:[0-9a-f]{3}|[0-9a-f]{6})\b | \btab:[a-z] | ["']C[0-9]["'] | \b(?:rgb|hsl)a?\(
    | color=["'](?!none) | ["']0?\.[0-9]+["']""",
    re.IGNORECASE | re.VERBOSE,
)
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(float(TO_XYZ[1] @ linear(color)) for color in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def difference(one: str, other: str, vision) -> float:
    """Return the distance in CIELAB of two colours as somebody sees them; 2 or 3 can just be told apart."""
    labs = []
    for color in (one, other):
        x, y, z = TO_XYZ @ np.clip(np.array(vision) @ linear(color), 0, 1) / [0.9505, 1.0, 1.089]
        f, g, h = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
        labs.append(np.array([116 * g - 16, 500 * (f - g), 200 * (g - h)]))
    return float(np.linalg.norm(labs[0] - labs[1]))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS.values(), ids=VISIONS)
def test_everybody_can_tell_the_colours_of_lines_apart(theme, vision):
    colors = [theme[name] for name in SERIES]
    assert min(difference(*pair, vision) for pair in itertools.combinations(colors, 2)) > 20


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_stand_out_from_the_paper_as_wcag_asks(theme):
    assert min(contrast(theme[name], theme["paper"]) for name in ("ink", "faint")) >= 4.5
    assert min(contrast(theme[name], theme["paper"]) for name in SERIES) >= 3


def test_red_and_green_of_one_brightness_are_the_control_that_is_caught():
    assert difference("#c04040", "#6f7f2f", VISIONS["no green"]) < 20
    assert difference("#c04040", "#6f7f2f", VISIONS["all colours"]) > 60


def test_a_drawing_follows_the_theme_of_its_page_or_by_itself():
    path = f'<path style="fill: #FFFFFF; stroke: {LIGHT["blue"]}; stop-color: #123456"/>'
    themed = (
        f'<path style="fill: #FFFFFF;fill:var(--paper); stroke: {LIGHT["blue"]};stroke:var(--blue); '
        'stop-color: #123456"/>'
    )
    assert follow_the_theme(path) == themed
    alone = ElementTree.fromstring(stand_alone(f'<?xml version="1.0"?><svg width="9">{path}</svg>'))
    assert alone[0].text == css()
    assert f'<path style="{alone[1].attrib["style"]}"/>' == themed
    for theme in (LIGHT, DARK):
        assert f"--blue:{theme['blue']};" in css()
    assert len({*LIGHT.values()}) == len(LIGHT)  # or a colour would have the wrong name


def test_colours_are_written_down_in_one_file():
    files = [path for room in ("src", "training") for path in (ROOT / room).rglob("*.*")]
    drawing = [path for path in files if path.suffix in (".py", ".html", ".js", ".css")]
    found = {path.relative_to(ROOT).as_posix() for path in drawing if LITERAL.search(path.read_text(encoding="utf-8"))}
    assert found == {"src/vaswani/pictures/look.py"}


@pytest.mark.parametrize(
    "text", ["stroke:#20f", 'x = "#2054EA"', "'tab:blue'", "'C3'", "fill: rgb(1,2,3)", 'color="red"']
)
def test_a_colour_that_is_written_down_is_found(text):
    assert LITERAL.search(text)
