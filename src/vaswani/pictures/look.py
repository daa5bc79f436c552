"""One look for all that is drawn: a few colours, in light and in dark, and how matplotlib draws with them.

The colours of lines differ for people with any kind of colour blindness, and stand out from the paper. Where they mean
something, a second sign must say it too: a dash, a mark or a word.
"""

import re
from html import escape


LIGHT = {
    "paper": "#ffffff", "ink": "#1b1d21", "faint": "#5d636e", "rule": "#d6d9df",
    "blue": "#2054ea", "orange": "#e06a14", "green": "#069b54", "pink": "#d739c1", "ochre": "#6e4e05",
    "grey": "#8c8c8b",
}  # fmt: skip
DARK = {
    "paper": "#15171c", "ink": "#e8eaee", "faint": "#a4abb6", "rule": "#3a3f48",
    "blue": "#458bef", "orange": "#9a6641", "green": "#42ec89", "pink": "#c12c7e", "ochre": "#e8c32c",
    "grey": "#dadadf",
}  # fmt: skip
SERIES = ("blue", "orange", "green", "pink", "ochre", "grey")
DASHES = ("-", "--", "-.", ":")

# Of matplotlib: text stays text, that can be searched, read aloud and set in the page's own type.
MATPLOTLIB = {
    "svg.fonttype": "none", "svg.hashsalt": "vaswani", "font.family": "sans-serif", "font.size": 10,
    "figure.facecolor": LIGHT["paper"], "axes.facecolor": LIGHT["paper"], "savefig.facecolor": LIGHT["paper"],
    "text.color": LIGHT["ink"], "axes.labelcolor": LIGHT["ink"], "axes.titlecolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["faint"], "xtick.color": LIGHT["faint"], "ytick.color": LIGHT["faint"],
    "grid.color": LIGHT["rule"], "axes.grid": True, "axes.axisbelow": True, "grid.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "lines.linewidth": 1.6,
}  # fmt: skip


def line_style(number: int) -> dict[str, str]:
    """Return colour and dashes of a figure's line, counted from 0, for matplotlib: all colours, then other dashes."""
    color, dashes = SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]
    return {"color": LIGHT[color], "linestyle": dashes}


def css() -> str:
    """Return a style sheet that has each colour as a variable, such as ``var(--blue)``, by the reader's preference."""
    light, dark = ("".join(f"--{name}:{value};" for name, value in colors.items()) for colors in (LIGHT, DARK))
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        "body{background:var(--paper);color:var(--ink)}\n"
    )


def follow_the_theme(text: str) -> str:
    """Add to each colour of `LIGHT` that a style declares its variable, which programs other than browsers skip."""
    names = {value: name for name, value in LIGHT.items()}

    def both(found: re.Match) -> str:
        declaration, name = found[0], names.get(found[2].lower())
        return declaration if name is None else f"{declaration};{found[1]}:var(--{name})"

    return re.sub(r"([a-z-]+):\s*(#[0-9A-Fa-f]{6})\b", both, text)


def stand_alone(svg: str) -> str:
    """Return a drawing whose file follows the theme by itself, without a page around it."""
    start = svg.index("<svg")
    end = svg.index(">", start) + 1
    return f"{svg[:end]}<style>{css()}</style>{follow_the_theme(svg[end:])}"


def xml_text(text: str) -> str:
    """Return text as it may stand within XML, which knows no control characters."""
    return escape(re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
