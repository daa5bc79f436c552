"""The page as a program reads it; tests/e2e opens it in a browser."""

import re
from html.parser import HTMLParser

import pytest

from training.reports import page as module
from training.reports.page import describe_progress, write_report
from training.reports.records import read_runs


class Page(HTMLParser):
    """The text of a page, its tables as lists of rows of cells, its elements, and what it would fetch."""

    def __init__(self, html: str):
        super().__init__()
        self.text, self.tables, self.elements, self.fetched = "", [], [], []
        self.feed(html)
        self.tables = [[[cell.strip() for cell in row] for row in table] for table in self.tables]

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_data(self, data):
        self.text += data
        if self.tables and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data


@pytest.fixture
def drawn_page(tmp_path):
    def write(*directories) -> Page:
        write_report(read_runs(list(directories)), tmp_path / "shown.html")
        return Page((tmp_path / "shown.html").read_text(encoding="utf-8"))

    return write


@pytest.fixture
def page(drawn_page, monkeypatch):
    """Write pages without drawings, which take seconds."""
    monkeypatch.setattr(module, "draw", lambda runs: ({}, {}))
    return drawn_page


def cells(table) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in table}


def test_it_says_results_cost_and_settings(page, make_run):
    shown = page(make_run())
    facts = cells(shown.tables[0])
    assert facts["validation: sacreBLEU"] == ["33.75"]
    assert facts["validation: search"] == ["beam 4"]
    assert (facts["target tokens"], facts["time of training"]) == (["1,200"], ["0 min 24 s"])
    assert (facts["skipped updates"], facts["target tokens a second"]) == (["1"], ["50"])
    settings = cells(shown.tables[-1])
    assert (settings["seed"], settings["hardware"]) == (["2017"], ["a machine"])
    assert "mine is finished after 6 updates" in shown.text


def test_it_needs_nothing_but_itself(drawn_page, make_run):
    shown = drawn_page(make_run())
    assert "script" not in shown.elements
    assert all(where.startswith("#") for where in shown.fetched)
    assert not {"link", "img", "iframe"} & set(shown.elements)
    assert shown.elements.count("svg") == 11


def test_what_a_run_translated_is_text_and_no_html(page, make_run):
    directory = make_run()
    evil = "<script>alert(1)</script> & <img src=http://x>"
    for name in ("source", "reference", "final"):
        (directory / "outputs" / f"validation.{name}.txt").write_text(f"{evil}\n" * 3 + "a\n")
    shown = page(directory)
    assert evil in shown.text
    assert not {"script", "img"} & set(shown.elements)


def test_sentences_stand_beside_their_references_with_differences_marked(page, make_run, tmp_path):
    shown = page(make_run())
    samples = shown.tables[1:5]
    assert [row[0] for row in samples[0]] == ["when", "update 2", "update 4", "at the end"]
    assert samples[1][-1] == ["at the end", samples[1][-1][1], "zwei Katzen <b>", "two dogs <b>", "two cats <b>"]
    html = (tmp_path / "shown.html").read_text(encoding="utf-8")
    assert ">two <mark>dogs</mark> &lt;b&gt;</td>" in html
    assert '<td dir="auto" lang="de">שלום עולם</td>' in html
    worst, best = shown.tables[5:7]
    assert ([row[2] for row in worst[1:]], worst[1][0]) == (["x", "two dogs <b>"], "0.0")
    assert [row[0] for row in best[1:]] == ["100.0", "100.0"]


def test_the_worst_and_the_best_are_of_the_test_text_where_there_is_one(page, make_run):
    directory = make_run()
    for kind, words in {"source": "eins", "reference": "one", "final": "other"}.items():
        (directory / "outputs" / f"test.{kind}.txt").write_text(f"{words} a\n{words} b\n")
    shown = page(directory)
    assert shown.tables[5][1][1:3] == ["eins a", "other a"]
    assert shown.tables[2][-1][2] == "zwei Katzen <b>"  # samples through training are of validation


def test_runs_stand_side_by_side_what_differs_first(page, make_run):
    shown = page(make_run("one"), make_run("two", seed=7, warmup_steps=9))
    assert shown.tables[0][0] == ["", "one", "two"]
    assert [row for row in shown.tables[-1][1:] if row[1] != row[2]] == shown.tables[-1][1:3]
    assert cells(shown.tables[-1])["warmup_steps"] == ["", "9"]
    assert "the 2 that differ first" in shown.text


def test_a_run_under_way_shows_how_far_it_is(page, make_run):
    shown = page(make_run(finished=False, max_steps=24))
    assert "mine: 6 of 24 updates (25%), about 1 min 12 s of training left at its rate; last logged 20" in shown.text
    assert "progress" in shown.elements


def test_a_run_that_has_only_begun_has_a_page(drawn_page, make_run):
    directory = make_run(finished=False)
    (directory / "metrics.jsonl").write_text('{"step": 2, "lo\n')
    for path in (directory / "outputs").iterdir():
        path.unlink()
    shown = drawn_page(directory)
    assert "mine: 0 of 6 updates (0%); last logged" in shown.text
    assert "1 line(s) of its metrics.jsonl are not whole" in describe_progress(read_runs([directory])[0])["said"]
    assert shown.elements.count("svg") == 1  # the lengths of the training text


def test_drawings_are_files_too(drawn_page, make_run, tmp_path):
    drawn_page(make_run())
    names = {path.name for path in (tmp_path / "shown").iterdir()}
    assert {"loss.svg", "loss.png", "validation-by-length.png", "training-lengths.svg"} <= names
    assert (tmp_path / "shown" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert re.match(r"<svg[^>]*><style>:root", (tmp_path / "shown" / "loss.svg").read_text())


def test_a_parser_has_its_own_scores(page, make_run, tmp_path):
    directory = make_run(target_lang="tree")
    groups = {"1-10": {"sentences": 2, "bracketing_f1": 80.0}, "11-20": {"sentences": 0, "bracketing_f1": 0.0}}
    row = {"step": 6, "split": "validation", "bracketing_f1": 71.5, "tagging_accuracy": 90.0, "nll": 0.4}
    text = str(row | {"bracketing_f1_by_length": groups}).replace("'", '"')
    (directory / "metrics.jsonl").write_text(text + "\n")
    shown = page(directory)
    assert cells(shown.tables[0])["validation: labelled F1 (EVALB)"] == ["71.5"]
    assert "validation: sacreBLEU" not in cells(shown.tables[0])
    assert 'lang="tree"' not in (tmp_path / "shown.html").read_text(encoding="utf-8")
