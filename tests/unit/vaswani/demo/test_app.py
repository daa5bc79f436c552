"""The page as Gradio describes it; tests/e2e opens it in a browser and calls its API."""

import pytest

from vaswani.pictures.look import DARK, LIGHT


gradio = pytest.importorskip("gradio", reason="the extra [demo] is not installed")
app = pytest.importorskip("vaswani.demo.app")


def components(page) -> dict[str, dict]:
    described = page.get_config_file()["components"]
    return {part["props"].get("label"): part["props"] for part in described if part["props"].get("label")}


def test_the_controls_begin_with_the_model_s_own_search_and_say_what_they_do(interpreter):
    interpreter.num_beams, interpreter.alpha = 5, 0.9
    found = components(app.build(interpreter))
    assert (found["Beams"]["value"], found["Beams"]["minimum"], found["Beams"]["maximum"]) == (5, 1, 12)
    assert (found["Alpha"]["value"], found["Alpha"]["maximum"]) == (0.9, 2.0)
    assert "The paper: 4." in found["Beams"]["info"]
    assert "The paper: 0.6." in found["Alpha"]["info"]


def test_a_penalty_of_the_models_own_has_no_slider_and_is_not_sent(interpreter):
    interpreter.alpha = None
    page = app.build(interpreter)
    assert "Alpha" not in components(page)
    sent = [each.inputs[2].value for each in page.fns.values() if len(each.inputs) == 3]
    assert sent == [None, None, None]  # by the tab of text, that of files, and the API
    said = [part["props"]["value"] for part in page.get_config_file()["components"] if part["type"] == "markdown"]
    assert any("divided by the model's own length penalty. " in text for text in said)


def test_the_languages_are_named(interpreter):
    assert {"Text (en), a sentence a line", "Translation (de)"} <= set(components(app.build(interpreter)))
    interpreter.languages = (None, None)
    assert {"Text, a sentence a line", "Translation"} <= set(components(app.build(interpreter)))


def test_attention_is_hidden_where_there_is_none(interpreter):
    assert components(app.build(interpreter))["Attention"]["visible"]
    interpreter.model.engine = "another library"
    assert not components(app.build(interpreter))["Attention"]["visible"]


def test_programs_see_two_functions(interpreter):
    named = app.build(interpreter).get_api_info()["named_endpoints"]
    assert set(named) == {"/translate", "/attention"}
    parameters = {part["parameter_name"]: part.get("parameter_default") for part in named["/translate"]["parameters"]}
    assert parameters == {"text": None, "num_beams": interpreter.num_beams, "length_penalty_alpha": 0.6}


@pytest.mark.parametrize(("name", "given"), [("translate", [" ", 1, 0.6]), ("attention", ["The dog.", " "])])
def test_a_mistake_of_a_visitor_puts_no_traceback_on_the_screen(name, given, interpreter):
    (function,) = [each.fn for each in app.build(interpreter).fns.values() if each.api_name == name]
    with pytest.raises(gradio.Error, match="nothing to translate") as refusal:
        function(*given)
    assert not refusal.value.print_exception


def test_its_colours_are_those_of_all_that_is_drawn():
    theme = app.theme()
    assert theme.button_primary_background_fill == LIGHT["blue"]
    assert theme.body_background_fill_dark == DARK["paper"]


def test_its_settings_reach_gradio(interpreter, monkeypatch):
    given = {}

    class Page:
        local_url = "http://x"

        def launch(self, **arguments):
            given.update(arguments)

        def block_thread(self):
            given["blocked"] = True

    monkeypatch.setattr(app, "build", lambda _: Page())
    app.serve(interpreter, server_port=8080)
    assert given["server_port"] == 8080
    assert given["blocked"]
