"""The web demo and a Space in a browser, and from a program, as people use them."""

import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from vaswani import cli
from vaswani.demo.interpreter import Interpreter
from vaswani.loading import load
from vaswani.translation import translate


gradio_client = pytest.importorskip("gradio_client", reason="gradio, of the extra [demo], is not installed")
expect = pytest.importorskip("playwright.sync_api", reason="playwright, of the extra [dev], is not installed").expect
VASWANI = os.path.join(os.path.dirname(sys.executable), "vaswani")


@contextmanager
def serving(command: list[str], port: int, **given) -> Iterator[str]:
    """Run a server until its page is there, and end it with Ctrl-C afterwards."""
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore Ctrl-C
    given |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "preexec_fn": heed}
    server = subprocess.Popen(command, **given)
    address = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(240):
            assert server.poll() is None, server.stdout.read()
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        yield address
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def address(finished_run) -> Iterator[str]:
    port = free_port()
    with serving([VASWANI, "demo", "--model", str(finished_run / "model"), "--server_port", str(port)], port) as found:
        yield found


@pytest.fixture(scope="module")
def interpreter(finished_run) -> Interpreter:
    return Interpreter(*load(str(finished_run / "model"), device="cpu"))


def expected(interpreter, *lines: str, **search) -> list[str]:
    """Return what ``generate()`` makes of lines."""
    return [best[0].text for best in translate(interpreter.model, interpreter.tokenizer, lines, **search)]


@pytest.mark.parametrize(("width", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_a_person_translates_text(address, interpreter, open_page, inspect, width, scheme):
    page = open_page(address, width, scheme)
    page.get_by_label("Text (en)").fill("one two three\n\nfour")
    page.get_by_role("button", name="Translate", exact=True).click()
    page.locator("[data-weights]").first.wait_for()
    best = expected(interpreter, "one two three", "", "four")
    assert page.get_by_label("Translation (de)").input_value() == "\n".join(best)
    found = interpreter.alternatives(["one two three", "", "four"], interpreter.num_beams, interpreter.alpha)
    rows = [row.split("\t") for row in page.locator("table.alternatives tbody tr").all_inner_texts()]
    assert [(float(score), text) for _, _, score, text in rows] == [
        (round(score, 3), text) for line in (0, 2) for text, score in found[line]
    ]
    inspect(page, f"demo-{width}-{scheme}")
    page.get_by_role("tab", name="File").click()
    inspect(page, f"demo-file-{width}-{scheme}")


def test_a_click_on_a_word_shows_where_the_model_looked(address, interpreter, open_page):
    page = open_page(address)
    page.get_by_label("Text (en)").fill("one two three")
    page.get_by_role("button", name="Translate", exact=True).click()
    words = page.locator("button[data-weights]")
    words.first.wait_for()
    alignment = interpreter.align("one two three", *expected(interpreter, "one two three"))
    assert words.all_inner_texts() == alignment.target
    for word, weights in zip(words.all(), alignment.weights, strict=True):
        word.click()
        best = max(range(len(weights)), key=lambda place: weights[place])
        said = page.locator(".pair [role=status]").inner_text()
        name = [*alignment.source[:-1], "(end of the sentence)"][best]
        assert said.startswith(f"{word.inner_text()}: {name} {round(100 * weights[best])}%")
        assert word.get_attribute("aria-pressed") == "true"
    assert page.locator("button[aria-pressed=true]").count() == 1


def test_beams_and_alpha_reach_the_search(address, interpreter, open_page):
    page = open_page(address)
    page.get_by_role("button", name="How it searches").click()
    for name, value in (("Beams", "2"), ("Alpha", "1.5")):
        number, slider = page.get_by_label(f"number input for {name}"), page.get_by_label(f"range slider for {name}")
        for _ in range(10):  # what is typed while the opened part is still being drawn is lost
            number.fill(value)
            number.press("Tab")  # a number counts as soon as the field is left
            page.wait_for_timeout(500)
            if slider.input_value() == value:
                break
        expect(slider).to_have_value(value)
    page.get_by_label("Text (en)").fill("one two")
    page.get_by_role("button", name="Translate", exact=True).click()
    page.locator("[data-weights]").first.wait_for()
    rows = [row.split("\t") for row in page.locator("table.alternatives tbody tr").all_inner_texts()]
    [found] = interpreter.alternatives(["one two"], 2, 1.5)
    assert [(float(score), text) for _, _, score, text in rows] == [(round(score, 3), text) for text, score in found]


def test_a_person_translates_by_keyboard(address, interpreter, open_page):
    page = open_page(address)
    page.get_by_label("Text (en)").wait_for()

    def go_to(locator) -> None:
        for _ in range(30):
            page.keyboard.press("Tab")
            if locator.evaluate("element => element === document.activeElement"):
                return
        raise AssertionError(f"{locator} cannot be reached by keyboard")

    go_to(page.get_by_label("Text (en)"))
    page.keyboard.type("four five")
    go_to(page.get_by_role("button", name="Translate", exact=True))
    page.keyboard.press("Enter")
    word = page.locator("button[data-weights]").first
    word.wait_for()
    assert page.get_by_label("Translation (de)").input_value() == expected(interpreter, "four five")[0]
    go_to(word)
    page.keyboard.press("Space")
    assert page.locator(".pair [role=status]").inner_text().startswith(word.inner_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  ", "There is nothing to translate: type a sentence."),
        ("one two " * 600, "fit: break it into sentences, a line each."),
        ("one\n" * 60, "These are 60 lines, and 50 fit here: translate them as a file."),
    ],
)
def test_what_cannot_be_translated_is_told(address, open_page, inspect, text, message):
    page = open_page(address, "phone")
    page.get_by_label("Text (en)").fill(text)
    page.get_by_role("button", name="Translate", exact=True).click()
    page.get_by_role("alert").filter(has_text=message).wait_for()
    inspect(page, "demo-problem")


def test_whatever_is_typed_stays_text(address, open_page):
    page = open_page(address, "phone")
    text = "<img src=x onerror=alert(1)> {{value}} ${1+1} שלום e\u0301 " + "x" * 300
    page.get_by_label("Text (en)").fill(text)
    page.get_by_role("button", name="Translate", exact=True).click()
    page.locator("[data-weights]").first.wait_for()
    words = page.locator("[data-source]").all_inner_texts()
    assert words[:-1] == text.split()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_file_is_translated_and_downloaded(address, interpreter, open_page, tmp_path):
    (tmp_path / "news.txt").write_text("one two\n\nfive\n")
    (tmp_path / "latin.txt").write_bytes("für".encode("latin-1"))
    page = open_page(address)
    page.get_by_role("tab", name="File").click()
    button = page.get_by_role("button", name="Translate the file")
    button.click()
    page.get_by_role("alert").filter(has_text="There is nothing to translate: choose a file.").wait_for()
    page.locator("input[type=file]").set_input_files(tmp_path / "news.txt")
    page.get_by_text("14.0 B").wait_for()  # the file arrived; while it travels, its name alone is shown
    button.click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download news.de.txt").click()
    assert download.value.suggested_filename == "news.de.txt"
    lines = expected(interpreter, "one two", "", "five")
    assert download.value.path().read_text() == "".join(f"{line}\n" for line in lines)


def test_a_program_translates_and_reads_attention(address, interpreter):
    client = gradio_client.Client(address, verbose=False)
    found = client.predict("one two\nthree", 3, 0.2, api_name="/translate")
    alternatives = interpreter.alternatives(["one two", "three"], 3, 0.2)
    assert [[each["translation_text"] for each in line] for line in found] == [
        [text for text, _ in line] for line in alternatives
    ]
    assert found[1][2]["score"] == pytest.approx(alternatives[1][2].score, abs=1e-4)
    alignment = client.predict("one two", "eins zwei", api_name="/attention")
    np.testing.assert_allclose(alignment["weights"], interpreter.align("one two", "eins zwei").weights, atol=1e-5)
    with pytest.raises(Exception, match="num_beams=99 must be a whole number from 1 to 12"):
        client.predict("one", 99, api_name="/translate")


def test_a_port_in_use_is_told_in_a_sentence(address, finished_run):
    port = re.search(r":(\d+)/", address)[1]
    command = [VASWANI, "demo", "--model", str(finished_run / "model"), "--server_port", port]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: server_name='127.0.0.1', server_port={port} cannot be ")


def test_a_space_needs_nothing_but_its_folder_and_its_requirements(finished_run, interpreter, tmp_path):
    """The requirements are those of the environment that runs the tests: to install torch again would take minutes."""
    assert cli.main(["demo", "--model", str(finished_run / "model"), "--space", str(tmp_path / "space")]) == 0
    venv.create(tmp_path / "clean")
    (packages,) = (tmp_path / "clean").glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")  # whose own .pth are not followed
    python, port = str(tmp_path / "clean" / "bin" / "python"), free_port()
    environment = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "GRADIO_SERVER_PORT": str(port)}
    lost = subprocess.run(
        [python, "-c", "import vaswani"], cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=60
    )
    assert b"No module named 'vaswani'" in lost.stderr
    with serving([python, "app.py"], port, cwd=tmp_path / "space", env=environment) as address:
        found = gradio_client.Client(address, verbose=False).predict("one two", api_name="/translate")
    assert found[0][0]["translation_text"] == expected(interpreter, "one two")[0]
