"""The web demo, by Gradio: text and translation side by side, alternatives, attention, files, and an API."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from vaswani.errors import UserError
from vaswani.loading import load
from vaswani.pictures.look import DARK, LIGHT

from . import fragments
from .interpreter import Interpreter


ABOUT_BEAMS = (
    "How many unfinished translations the search keeps side by side, and how many it then offers. More find likelier "
    "translations and take longer. The paper: 4."
)
ABOUT_ALPHA = (
    "How much longer translations are preferred. At 0 the likeliest wins, which is often too short. The paper: 0.6. "
    "It needs two beams or more."
)
ABOUT_SCORES = (
    "The score is what the search ranks by: the log-probability of the translation, divided by {penalty}. Nearer to 0 "
    "is better. With one beam it is the log-probability itself."
)
PAPERS_PENALTY, OWN_PENALTY = "the length penalty ((5 + word pieces) / 6)^alpha", "the model's own length penalty"
ABOUT_ATTENTION = (
    "Choose a word of the translation to see at which words of the source the model looked while it wrote it, as the "
    "mean over all its layers and heads."
)
# Of all that uses the model: reading attention gives it another attention function for a while.
ONE_AT_A_TIME = {"concurrency_id": "model", "concurrency_limit": 1}
PROGRESS = gr.Progress()  # Gradio finds it as the default of an argument
DOWNLOAD = "Download the translation"
NO_ATTENTION = "This model, or this text, has no attention to show."


def launch(model: str | Path, **given: Any) -> None:
    """Serve the demo of a model until it is interrupted.

    Parameters
    ----------
    model : str or Path
        A published folder or a Hub id.
    **given
        As for `serve`.
    """
    serve(Interpreter(*load(str(model))), **given)


def serve(interpreter: Interpreter, **given: Any) -> None:
    """Serve the demo of a model; `given` goes to Gradio's ``launch()`` (`server_name`, `server_port`, ...)."""
    page = build(interpreter)
    look = {"theme": theme(), "css": fragments.STYLE, "footer_links": ["api"]}
    page.launch(**look, show_error=True, quiet=True, prevent_thread_lock=True, **given)
    print(f"Translating at {page.local_url} until Ctrl-C ends it.", flush=True)
    page.block_thread()


def theme() -> gr.themes.Base:
    """Return a theme in our colours, with the fonts that a reader's machine has."""
    plain = gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    colors = {"button_primary_background_fill": "blue", "slider_color": "blue", "link_text_color": "blue"}
    colors |= {"button_primary_background_fill_hover": "blue"}
    colors |= {"body_background_fill": "paper", "body_text_color": "ink", "block_info_text_color": "faint"}
    colors |= {"body_text_color_subdued": "faint", "block_label_text_color": "faint"}
    colors |= {"input_placeholder_color": "faint", "button_primary_text_color": "paper"}
    light = {name: LIGHT[color] for name, color in colors.items()}
    return plain.set(**light, **{f"{name}_dark": DARK[color] for name, color in colors.items()})


def build(interpreter: Interpreter) -> gr.Blocks:
    """Build the page and its API."""
    source, target = (language or "?" for language in interpreter.languages)
    with gr.Blocks(title="Translate", analytics_enabled=False, delete_cache=(3600, 86400)) as page:
        gr.Markdown(f"# Translate: {source} → {target}")
        with gr.Accordion("How it searches", open=False):
            beams = gr.Slider(
                1, interpreter.most_beams, interpreter.num_beams, step=1, label="Beams", info=ABOUT_BEAMS
            )
            alpha = gr.State(None)  # where the model's own penalty is not the paper's
            if interpreter.alpha is not None:
                limits = interpreter.least_alpha, interpreter.most_alpha
                alpha = gr.Slider(*limits, interpreter.alpha, step=0.05, label="Alpha", info=ABOUT_ALPHA)
        with gr.Tab("Text"):
            _build_text_tab(interpreter, [beams, alpha])
        with gr.Tab("File"):
            _build_file_tab(interpreter, [beams, alpha])
        _add_api(interpreter)
    return page


def _build_text_tab(interpreter: Interpreter, search: list[gr.Slider]) -> None:
    source, target = (f" ({language})" if language else "" for language in interpreter.languages)
    with gr.Row():
        size = {"lines": 5, "max_lines": 12, "min_width": 280}  # side by side, but one above the other on a phone
        text = gr.Textbox(label=f"Text{source}, a sentence a line", **size)
        translation = gr.Textbox(label=f"Translation{target}", interactive=False, **size)
    button = gr.Button("Translate", variant="primary")
    problem = gr.HTML()
    with gr.Accordion("Alternatives", open=True):
        gr.Markdown(ABOUT_SCORES.format(penalty=OWN_PENALTY if interpreter.alpha is None else PAPERS_PENALTY))
        alternatives = gr.HTML()
    with gr.Accordion("Attention", open=True, visible=interpreter.has_attention):
        gr.Markdown(ABOUT_ATTENTION)
        attention = gr.HTML(js_on_load=fragments.ON_CLICK)

    def show(text: str, num_beams: float, alpha: float | None) -> Iterator[tuple[str, str, str, str]]:
        try:
            lines = interpreter.lines(text)
            found = interpreter.alternatives(lines, int(num_beams), alpha)
        except UserError as error:
            yield "", fragments.problem(str(error)), "", ""
            return
        best = [hypotheses[0].text for hypotheses in found]
        shown = ("\n".join(best), "", fragments.alternatives_table(lines, found))
        yield *shown, ""  # what reads attention may take as long again
        alignments = [interpreter.align(line, text) for line, text in zip(lines, best, strict=True)]
        yield *shown, fragments.alignment_section(alignments) or NO_ATTENTION

    gr.on(
        [button.click, text.submit],
        show,
        [text, *search],
        [translation, problem, alternatives, attention],
        api_visibility="private",
        **ONE_AT_A_TIME,
    )


def _build_file_tab(interpreter: Interpreter, search: list[gr.Slider]) -> None:
    file = gr.File(label="Text file in UTF-8, a sentence a line", height=160)
    button = gr.Button("Translate the file", variant="primary")
    translation = gr.DownloadButton(DOWNLOAD, interactive=False)
    problem = gr.HTML()

    def translate_file(
        file: str | None, num_beams: float, alpha: float | None, progress: gr.Progress = PROGRESS
    ) -> tuple[gr.DownloadButton, str]:
        nothing = gr.DownloadButton(DOWNLOAD, value=None, interactive=False)
        if file is None:
            return nothing, fragments.problem("There is nothing to translate: choose a file.")
        source = Path(file)
        ending = interpreter.languages[1] or "translation"
        destination = Path(tempfile.mkdtemp()) / f"{source.stem}.{ending}{source.suffix}"
        try:
            interpreter.translate_file(
                source, int(num_beams), alpha, destination, lambda *done: progress(done, desc="Lines", unit="lines")
            )
        except UserError as error:
            return nothing, fragments.problem(str(error))
        return gr.DownloadButton(f"Download {destination.name}", value=destination, interactive=True), ""

    button.click(
        translate_file,
        [file, *search],
        [translation, problem],
        api_visibility="private",
        **ONE_AT_A_TIME,
    )


def _add_api(interpreter: Interpreter) -> None:
    """Add what programs call: `translate` and `attention`; a page's API says how."""

    def translate(
        text: str, num_beams: int = interpreter.num_beams, length_penalty_alpha: float | None = interpreter.alpha
    ) -> list[list[dict]]:
        try:
            found = interpreter.alternatives(interpreter.lines(text), num_beams, length_penalty_alpha)
        except UserError as error:
            raise gr.Error(str(error), print_exception=False) from error
        return [[{"translation_text": text, "score": score} for text, score in hypotheses] for hypotheses in found]

    def attention(source: str, target: str) -> dict | None:
        try:
            alignment = interpreter.align(*(interpreter.lines(text)[0] for text in (source, target)))
        except UserError as error:
            raise gr.Error(str(error), print_exception=False) from error
        return None if alignment is None else alignment._asdict()

    for function in (translate, attention):
        gr.api(function, api_name=function.__name__, **ONE_AT_A_TIME)
