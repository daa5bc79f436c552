"""Attention as a page to play with: lines between tokens, heat maps, and what each head does; in one file."""

import base64
import json
import math
import re
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from .attention import CROSS, END, KINDS, Attention, head_facts, join_words, readable
from .look import SERIES, css


WINDOW = 40  # tokens of a side that are shown at once
FACTS = ("entropy", "distance", "itself", "previous", "next", "first", "last")


def attention_page(attention: Attention, title: str) -> str:
    """Return the page: an HTML document that needs nothing else, and joins word pieces into words on request."""
    words = join_words(attention)
    sentences = [
        " ".join(readable(word).strip() for word in side if word != END) for side in (words.source, words.target)
    ]
    parts = {
        "TITLE": escape(title),
        "CSS": css(),
        "SENTENCES": "".join(f'<p dir="auto">{escape(sentence.strip())}</p>' for sentence in sentences),
        "KINDS": "".join(f'<option value="{kind}">{KINDS[kind]}</option>' for kind in attention.weights),
        "TOO_LONG": describe_windows(attention),
        "HEADS": head_rows(attention),
        "ALIGNMENT": describe_alignment(attention),
        "DATA": json.dumps(as_data(attention), ensure_ascii=False).replace("<", "\\u003c"),
        "SCRIPT": read("attention.js"),
    }
    return re.sub(r"\[\[([A-Z_]+)\]\]", lambda place: parts[place[1]], read("attention.html"))


def read(name: str) -> str:
    """Read a file that lies beside this one."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def as_data(attention: Attention) -> dict[str, Any]:
    """Return what the script draws: weights as bytes, of pieces and of words."""
    units = {"pieces": attention, "words": join_words(attention)}
    return {
        "kinds": KINDS,
        "series": SERIES,
        "window": WINDOW,
        "sizes": {kind: weights.shape[:2] for kind, weights in attention.weights.items()},
        "units": {
            unit: {
                "labels": {kind: [shown(tokens) for tokens in found.labels(kind)] for kind in found.weights},
                "weights": {kind: pack(weights) for kind, weights in found.weights.items()},
            }
            for unit, found in units.items()
        },
    }


def shown(tokens: list[str]) -> list[str]:
    """Write tokens as text, and a space so that it is seen where it is all there is."""
    return [readable(token).strip() or "␣" for token in tokens]


def pack(weights: np.ndarray) -> str:
    """Write weights as bytes, of which 255 stands for 1, in base 64."""
    return base64.b64encode(np.rint(255 * weights.clip(0, 1)).astype(np.uint8).tobytes()).decode("ascii")


def head_rows(attention: Attention) -> str:
    """Return the rows of the table of heads."""
    rows = []
    for kind, layers in attention.weights.items():
        for layer, heads in enumerate(layers):
            for head, weights in enumerate(heads):
                facts = head_facts(weights, kind)
                cells = [_figure(getattr(facts, name), name) for name in FACTS]
                button = (
                    f'<button type="button" data-kind="{kind}" data-layer="{layer}" data-head="{head}">'
                    f"{KINDS[kind]}, layer {layer + 1}, head {head + 1}</button>"
                )
                rows.append(f'<tr><th scope="row">{button}</th>{"".join(cells)}<td>{facts.name}</td></tr>')
    return "\n".join(rows)


def _figure(value: float | None, name: str) -> str:
    if value is None:
        return "<td></td>"
    text = f"{value:.2f}" if name in ("entropy", "distance") else f"{100 * value:.0f}%"
    return f'<td class="number">{text}</td>'


def describe_windows(attention: Attention) -> str:
    """Say that a sentence is too long for one screen, where it is."""
    longest = max(len(attention.source), len(attention.target))
    if longest <= WINDOW:
        return ""
    return (
        f"<p>With {longest} tokens it is too long for one screen: {WINDOW} tokens of a side are shown at a time.</p>"
    )


def describe_alignment(attention: Attention) -> str:
    """Return a line for each token that was written: to which source tokens all heads together attend most."""
    if CROSS not in attention.weights:
        return ""
    words = join_words(attention)
    source = shown(words.source)
    lines = []
    for token, row in zip(shown(words.target), words.alignment, strict=True):
        best = sorted(zip(row, source, strict=True), key=lambda pair: -pair[0])[:3]
        cells = ", ".join(f"{escape(word)} {100 * weight:.0f}%" for weight, word in best)
        lines.append(f'<tr><th scope="row" dir="auto">{escape(token)}</th><td dir="auto">{cells}</td></tr>')
    return (
        '<h2 id="alignment">Soft alignment</h2><p>For each word that is written, the words of the source that all '
        f"heads of all layers together look at most. At most {math.log2(len(source)):.1f} bits of entropy are "
        'possible over this source.</p><div class="scroll" tabindex="0" role="region" aria-labelledby="alignment">'
        '<table><thead><tr><th scope="col">written</th><th scope="col">source</th></tr></thead><tbody>'
        f"{''.join(lines)}</tbody></table></div>"
    )
