"""A translation in motion: a drawing in which the words come one by one, each with lines to where the model looks."""

from collections.abc import Sequence

from .attention import END, Attention, join_words
from .attention_page import shown
from .look import css, xml_text


LETTER, GAP, MARGIN = 11.0, 26.0, 24.0  # pixels: the width of a letter, between words, around all
HEIGHT, SOURCE, TARGET = 230, 60, 190  # of the drawing, and of the two lines of text in it
SECONDS, REST = 1.2, 2.5  # a word, and how long the whole stands
FAINTEST = 0.05  # weights below this are not drawn
MOST_WORDS = 16  # of a side; more cannot be read
STYLE = """text{font:18px ui-monospace,monospace;fill:var(--ink);text-anchor:middle}
line{stroke:var(--blue);stroke-width:4;stroke-linecap:round}
rect{fill:var(--paper)}
.note{font:14px system-ui,sans-serif;fill:var(--faint);text-anchor:start}
@media (prefers-reduced-motion:reduce){*{animation:none!important}}
"""


def draw_motion(attention: Attention) -> str:
    """Draw a translation as it is written, as an SVG that moves by itself and follows the reader's theme.

    Parameters
    ----------
    attention : Attention
        Of word pieces, with encoder-decoder attention. The lines are its mean over all layers and heads.
    """
    words = join_words(attention)
    source = ["⏎" if word == END else word for word in shown(words.source)][:MOST_WORDS]
    all_written = [row for row, word in enumerate(words.target) if word != END]
    written = all_written[:MOST_WORDS]
    target = [shown(words.target)[row] for row in written]
    weights = words.alignment[written, : len(source)]
    (above, upper), (below, lower) = _places(source), _places(target)
    width = max(upper, lower)
    above, below = ([x + (width - own) / 2 for x in row] for row, own in ((above, upper), (below, lower)))
    total = SECONDS * len(target) + REST
    rules, parts = [], [_words(source, above, SOURCE)]
    for number, (x, row) in enumerate(zip(below, weights, strict=True)):
        begin, end = (100 * SECONDS * at / total for at in (number, number + 1))
        rules += [_shown_from(f"w{number}", begin, 100, total), _shown_from(f"l{number}", begin, end, total)]
        lines = "".join(
            f'<line x1="{x:.0f}" y1="{TARGET - 24}" x2="{place:.0f}" y2="{SOURCE + 10}" opacity="{weight:.2f}"/>'
            for place, weight in zip(above, row, strict=True)
            if weight >= FAINTEST
        )
        parts.append(
            f'<g class="l{number}">{lines}</g><g class="w{number}">{_words([target[number]], [x], TARGET)}</g>'
        )
    longest = max(len(words.source), len(all_written))
    if longest > MOST_WORDS:
        note = f"(the first {MOST_WORDS} of {longest} words)"
        parts.append(f'<text class="note" x="{MARGIN:.0f}" y="{HEIGHT - 12}">{note}</text>')
    said = f"{' '.join(source).removesuffix(' ⏎')}: {' '.join(target)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {HEIGHT}" width="{width:.0f}" '
        f'height="{HEIGHT}" role="img" aria-label="{xml_text(said)}"><style>{css()}{STYLE}{"".join(rules)}</style>'
        f'<rect width="100%" height="100%" rx="8"/>{"".join(parts)}</svg>\n'
    )


def _places(words: Sequence[str]) -> tuple[list[float], float]:
    """Return the middle of each word on a line, and the width of the line with its margins."""
    places, x = [], MARGIN
    for word in words:
        places.append(x + LETTER * len(word) / 2)
        x += LETTER * len(word) + GAP
    return places, x - GAP + MARGIN


def _words(words: Sequence[str], places: Sequence[float], y: int) -> str:
    return "".join(f'<text x="{x:.0f}" y="{y}">{xml_text(word)}</text>' for word, x in zip(words, places, strict=True))


def _shown_from(name: str, begin: float, end: float, seconds: float) -> str:
    """Return the rules of an animation that shows the class `name` between two percentages of its time."""
    steps = f"0%,{begin:.2f}%{{opacity:0}}{begin + 0.5:.2f}%,{end:.2f}%{{opacity:1}}"
    steps += "" if end == 100 else f"{end + 0.5:.2f}%,100%{{opacity:0}}"
    return f"@keyframes {name}{{{steps}}}.{name}{{animation:{name} {seconds:.1f}s infinite}}\n"
