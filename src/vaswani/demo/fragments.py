"""Pieces of HTML that the web demo shows. Whatever a person or a model wrote is escaped."""

import json
from collections.abc import Sequence
from html import escape

from vaswani.pictures.look import DARK, LIGHT
from vaswani.translation import Hypothesis

from .interpreter import Alignment


END_OF_SENTENCE = "(end of the sentence)"
STYLE = f"""
:root{{--mark:{LIGHT["blue"]}}}
.dark{{--mark:{DARK["blue"]}}}
.alternatives{{width:100%;border-collapse:collapse}}
.alternatives th,.alternatives td{{text-align:start;padding:.3rem .6rem}}
.alternatives td:last-child{{overflow-wrap:anywhere}}
.alternatives tr{{border-bottom:1px solid var(--border-color-primary)}}
.alternatives .number{{text-align:end;font-variant-numeric:tabular-nums;white-space:nowrap}}
.pair{{border-bottom:1px solid var(--border-color-primary);padding:.5rem 0}}
.pair p{{margin:.25rem 0;line-height:2.1}}
.pair button,.pair span{{padding:.15rem .35rem;border-radius:.3rem;overflow-wrap:anywhere;max-width:100%}}
.pair button{{border:1px solid var(--body-text-color-subdued);background:none;cursor:pointer;font-weight:normal}}
.pair button[aria-pressed=true]{{outline:3px solid var(--mark)}}
.pair span{{background:color-mix(in srgb,var(--mark) var(--weight,0%),transparent)}}
.problem{{border-inline-start:4px solid {LIGHT["orange"]};padding:.25rem .75rem}}
:focus-visible{{outline:3px solid var(--mark);outline-offset:2px}}
[role=tab][aria-selected=true]{{color:var(--mark)!important}}
footer button,footer a,footer div{{color:var(--body-text-color)!important;opacity:1!important}}
"""
# Words are buttons: by mouse, finger or keyboard. What a colour shows is also said in words.
ON_CLICK = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-weights]");
  if (!button) return;
  const pair = button.closest(".pair"), weights = JSON.parse(button.dataset.weights);
  for (const other of pair.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
  const words = [...pair.querySelectorAll("[data-source]")];
  words.forEach((word, index) => word.style.setProperty("--weight", `${Math.min(60, weights[index])}%`));
  const best = words.map((word, index) => [weights[index], word.textContent]).sort((one, other) => other[0] - one[0]);
  const said = best.slice(0, 3).map(([weight, word]) => `${word} ${weight}%`).join(", ");
  pair.querySelector("[role=status]").textContent = `${button.textContent}: ${said}`;
});
"""


def problem(message: str) -> str:
    """Show what a person can put right."""
    return f'<p class="problem" role="alert">{escape(message)}</p>' if message else ""


def alternatives_table(lines: Sequence[str], translations: Sequence[Sequence[Hypothesis]]) -> str:
    """List all translations of each line, the best first, with their scores."""
    rows = []
    for line, (source, hypotheses) in enumerate(zip(lines, translations, strict=True), start=1):
        for rank, (text, score) in enumerate(hypotheses if source.strip() else [], start=1):
            rows.append(
                f'<tr><td class="number">{line}</td><td class="number">{rank}</td>'
                f'<td class="number">{score:.3f}</td><td dir="auto">{escape(text)}</td></tr>'
            )
    return (
        '<table class="alternatives"><thead><tr><th scope="col">line</th><th scope="col">rank</th>'
        '<th scope="col">score</th><th scope="col">translation</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def alignment_section(alignments: Sequence[Alignment | None]) -> str:
    """Show each translation above its source, its words as buttons that show where the model looked."""
    return "".join(_pair(alignment) for alignment in alignments if alignment is not None)


def _pair(alignment: Alignment) -> str:
    source = [*alignment.source[:-1], END_OF_SENTENCE]
    buttons = " ".join(
        f'<button type="button" aria-pressed="false" data-weights="{json.dumps([round(100 * w) for w in row])}">'
        f"{escape(word)}</button>"
        for word, row in zip(alignment.target, alignment.weights, strict=True)
    )
    words = " ".join(f"<span data-source>{escape(word)}</span>" for word in source)
    return f'<div class="pair"><p dir="auto">{buttons}</p><p dir="auto">{words}</p><p role="status"></p></div>'
