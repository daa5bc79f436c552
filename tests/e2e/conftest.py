"""A browser that fails a test if a page fails in any way that its reader need not notice."""

import shutil
from collections.abc import Callable, Iterator

import pytest

from training.settings import ROOT


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCREENSHOTS = ROOT / ".cache" / "screenshots"
WIDTHS = {"desktop": 1280, "phone": 390}


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """Return headless Chromium; Debian's packages `chromium` or another one on the path."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright, of the extra [dev], is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on the path: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def problems() -> list[str]:
    """Return what went wrong in the pages of a test so far."""
    return []


@pytest.fixture
def open_page(browser, problems) -> Iterator[Callable]:
    """Return what opens a page; any error in its console, failed request or request to a stranger fails the test."""
    contexts = []

    def open_it(address: str, width: str = "desktop", scheme: str = "light"):
        size = {"width": WIDTHS[width], "height": 900}
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, accept_downloads=True))
        page = contexts[-1].new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda said: said.type == "error" and problems.append(said.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("response", lambda got: got.status >= 400 and problems.append(f"{got.status} {got.url}"))
        page.on("requestfailed", lambda lost: _is_a_stream(lost) or problems.append(f"{lost.failure} {lost.url}"))
        page.on("request", lambda sent: _is_ours(sent.url) or problems.append(f"asks a stranger: {sent.url}"))
        page.goto(address)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert problems == []


def _is_a_stream(request) -> bool:
    """Say whether a page itself hung up, as Gradio's do when an answer is complete."""
    return "/queue/data" in request.url and request.failure == "net::ERR_ABORTED"


def _is_ours(address: str) -> bool:
    return address.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))


@pytest.fixture
def inspect() -> Callable:
    """Return what checks a page for accessibility by axe, and for its width, and keeps a screenshot."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    def check(page, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
        found = axe.run(page).response["violations"]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} scrolls sideways"

    return check
