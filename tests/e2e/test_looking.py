"""The report and the attention page in a browser, as a person sees and uses them."""

import re

import pytest

from vaswani import cli
from vaswani.loading import load
from vaswani.pictures.attention import CROSS, ENCODER, read_attention


LOOKS = [("desktop", "light"), ("phone", "dark")]


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_report_of_a_run(finished_run, open_page, inspect, width, scheme):
    page = open_page((finished_run / "report.html").as_uri(), width, scheme)
    inspect(page, f"report-{width}-{scheme}")
    assert page.locator("figure svg").count() >= 8
    for drawing in page.locator("figure svg").all():
        assert drawing.bounding_box()["width"] > 200
    ink = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark, light = (sum(map(int, re.findall(r"\d+", colour)[:3])) < 384 for colour in (paper, ink))
    assert (dark, light) == ((scheme == "dark"), (scheme == "light"))


def test_the_report_by_keyboard(finished_run, open_page):
    page = open_page((finished_run / "report.html").as_uri())
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.getAttribute('href') || document.activeElement.tagName"))
        if reached[-1] == "#settings":
            page.keyboard.press("Enter")
        if reached[-1] == "SUMMARY":
            page.keyboard.press("Enter")
            break
    assert {"#cost", "#curves", "#settings", "SUMMARY"} <= set(reached)
    assert page.url.endswith("#settings")
    assert page.get_by_role("row", name="max_steps 600").is_visible()


@pytest.fixture(scope="module")
def attention_page(finished_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("attention") / "attention.html"
    assert cli.main(["attention", "--model", str(finished_run / "model"), "one two three", "--output", str(path)]) == 0
    return path


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_attention_page(attention_page, open_page, inspect, width, scheme):
    page = open_page(attention_page.as_uri(), width, scheme)
    inspect(page, f"attention-{width}-{scheme}")
    page.get_by_label("as", exact=True).select_option("map")
    inspect(page, f"attention-map-{width}-{scheme}")


def weights_of(finished_run, kind):
    model, tokenizer = load(str(finished_run / "model"), device="cpu")
    return read_attention(model, tokenizer, "one two three").weights[kind]


def test_the_attention_page_draws_the_heads_that_are_chosen(finished_run, attention_page, open_page):
    page = open_page(attention_page.as_uri())
    lines = page.locator("#drawing line")
    for kind in (ENCODER, CROSS):
        weights = weights_of(finished_run, kind)
        page.get_by_label("attention", exact=True).select_option(kind)
        page.get_by_label("layer", exact=True).select_option("0")
        for number, head in enumerate(weights[0], start=1):
            for box in page.locator("#heads input").all():
                box.set_checked(box.get_attribute("value") == str(number - 1))
            drawn = sorted(float(line.get_attribute("stroke-opacity")) for line in lines.all())
            expected = sorted(float(weight) for weight in head.ravel() if round(255 * weight) / 255 >= 0.02)
            assert drawn == pytest.approx(expected, abs=0.004)
    page.get_by_role("button", name="all or none").click()
    assert lines.count() > len(expected)


def test_the_attention_page_by_keyboard(attention_page, open_page):
    page = open_page(attention_page.as_uri())
    page.get_by_label("attention", exact=True).focus()
    page.keyboard.press("ArrowUp")
    assert "encoder-decoder" not in page.locator("#said").inner_text()
    token = page.locator("#drawing text").first
    for _ in range(40):
        page.keyboard.press("Tab")
        if token.evaluate("token => token === document.activeElement"):
            break
    alone = page.locator("#drawing line:visible").count()
    page.keyboard.press("Shift+Tab")
    assert 0 < alone < page.locator("#drawing line").count()


def test_a_head_of_the_table_is_shown(attention_page, open_page):
    page = open_page(attention_page.as_uri())
    page.get_by_role("button", name="encoder self-attention, layer 2, head 2").click()
    assert page.locator("#said").inner_text() == "encoder self-attention, layer 2, head 2"


def test_a_long_sentence_is_shown_in_windows_and_what_is_written_never_runs(finished_run, tmp_path, open_page):
    source = "<script>alert(1)</script> שלום e\u0301 " + "one two " * 25
    path = tmp_path / "long.html"
    command = [
        "attention",
        "--model",
        str(finished_run / "model"),
        source,
        "--target",
        "x" * 60,
        "--output",
        str(path),
    ]
    assert cli.main(command) == 0
    page = open_page(path.as_uri(), "phone")
    page.get_by_text("it is too long for one screen").wait_for()
    page.get_by_label("tokens attended to").select_option(label=page.locator("#keys option").last.inner_text())
    assert page.locator("#drawing text[data-token=key]").last.evaluate("text => text.firstChild.data") == "</s>"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_page_that_fails_is_noticed(tmp_path, open_page, problems):
    (tmp_path / "broken.html").write_text("<script>console.error('broken')</script><img src='none.png'>")
    open_page((tmp_path / "broken.html").as_uri()).wait_for_timeout(200)
    said = " ".join(problems)
    problems.clear()
    assert "broken" in said
    assert "none.png" in said


def test_a_page_that_shuts_people_out_is_noticed(tmp_path, open_page, inspect):
    (tmp_path / "closed.html").write_text("<title>x</title><p style='width:200vw'>x</p>")
    with pytest.raises(AssertionError, match="html-has-lang"):
        inspect(open_page((tmp_path / "closed.html").as_uri()), "closed")
