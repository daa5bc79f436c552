import dataclasses
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from vaswani.card import END_OF_TABLE, add_to_card, eval_results, table_row
from vaswani.results import ParsingEvaluation


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def test_every_cell_stands_under_its_header(evaluation, request):
    template = (request.config.rootpath / "MODEL_CARD.md").read_text(encoding="utf-8")
    header = next(line for line in template.splitlines() if line.startswith("|") and "chrF" in line)
    found = dict(zip(cells(header), cells(table_row(evaluation, "news.de, test")), strict=True))
    assert found == {
        "text": "news.de, test",
        "sentences": "1,234",
        "decoding; weights": "beam 4, alpha 0.6; average of the last 4 checkpoints",
        "BLEU": "20.1",
        "lowercased": "21.2",
        "chrF": "52.3",
        "paper's BLEU": "23.4",
        "compounds whole": "22.5",
        "equal": "6.6%",
        "nll (perplexity)": "1.25 (3.49)",
        "signature": r"`nrefs:1\|case:mixed`",
    }


def test_weights_that_are_no_average_are_named(evaluation):
    one = dataclasses.replace(evaluation, averaged_checkpoints=1, paper_bleu=None)
    assert cells(table_row(one, "text"))[2] == "beam 4, alpha 0.6; step 500"
    assert cells(table_row(one, "text"))[6] == "-"
    unknown = dataclasses.replace(one, averaged_checkpoints=None, checkpoint=None)
    assert cells(table_row(unknown, "text"))[2] == "beam 4, alpha 0.6; the last"


def test_every_metric_of_the_model_index_is_named_as_what_it_is(evaluation):
    results = eval_results(evaluation, ["en", "de"], "News", "some/news", "en-de")
    found = {r.metric_name: (r.metric_type, r.metric_value, r.metric_args.get("signature")) for r in results}
    assert found == {
        "BLEU (sacreBLEU)": ("bleu", 20.1, "nrefs:1|case:mixed"),
        "chrF (sacreBLEU)": ("chrf", 52.3, "chrF2"),
        "BLEU (the paper's protocol: tokenized, compounds split)": ("bleu", 23.4, "quotes:straight"),
        "BLEU (the paper's protocol without splitting compounds)": ("bleu", 22.5, "quotes:straight"),
        "perplexity of a word piece, teacher-forced": ("perplexity", 3.49, None),
    }
    for result in results:
        assert result.metric_args["sentences"] == evaluation.sentences  # perhaps the first ones of the split
        assert result.metric_args["decoding"] == "beam 4, alpha 0.6"
        assert (result.metric_args["checkpoint"], result.metric_args["averaged_checkpoints"]) == ("step 500", 4)
        assert (result.dataset_type, result.dataset_name, result.dataset_config) == ("some/news", "News", "en-de")
        assert (result.dataset_split, result.task_name) == ("test", "Translation en-de")
    without = eval_results(dataclasses.replace(evaluation, paper_bleu=None), ["en", "de"], "News")
    assert len(without) == len(results) - 1


@pytest.fixture
def card(tmp_path):
    path = tmp_path / "model" / "README.md"
    path.parent.mkdir()
    path.write_text(f"---\nlanguage: [en, de]\n---\n# A model\n| old |\n{END_OF_TABLE}\nend\n")
    return path


def test_later_evaluations_stand_in_the_table_in_their_order(evaluation, card):
    for name in ("first.de", "second.de"):
        add_to_card(dataclasses.replace(evaluation, test_set=name), card)
    lines = card.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert [cells(row)[0] for row in rows] == ["old", "first.de, test", "second.de, test"]
    assert lines.index(END_OF_TABLE) == lines.index(rows[-1]) + 1
    names = [result.dataset_name for result in ModelCard.load(card).data.eval_results]
    assert names == ["first.de"] * 5 + ["second.de"] * 5


def test_texts_whose_names_have_spaces_are_texts_of_their_own_in_the_model_index(evaluation, card):
    names = ["news 2014.de", "news 2015.de", "wmt14 (de-en)", "wmt14 (fr-en)"]
    for name in names:
        add_to_card(dataclasses.replace(evaluation, test_set=name), card)
    results = ModelCard.load(card).data.eval_results
    assert [result.dataset_name for result in results[::5]] == names
    assert [(result.dataset_type, result.dataset_config) for result in results[::5]] == [
        ("news-2014.de", None), ("news-2015.de", None), ("wmt14", "de-en"), ("wmt14", "fr-en"),
    ]  # fmt: skip


def test_a_card_without_a_name_gets_that_of_its_folder_and_another_keeps_its_own(evaluation, card, monkeypatch):
    monkeypatch.chdir(card.parent)
    add_to_card(evaluation, Path("README.md"))
    assert ModelCard.load(card).data.model_name == "model"
    data = ModelCard.load(card)
    data.data.model_name = "its own"
    data.save(card)
    add_to_card(evaluation, card)
    assert ModelCard.load(card).data.model_name == "its own"


@pytest.mark.parametrize(("known", "target_lang"), [("language: de", "fr"), ("license: mit", "de")])
def test_a_card_of_one_language_names_it_as_one_and_of_none_that_of_the_evaluation(
    known, target_lang, evaluation, card
):
    card.write_text(f"---\n{known}\n---\n")
    add_to_card(dataclasses.replace(evaluation, target_lang=target_lang), card)
    assert {result.task_name for result in ModelCard.load(card).data.eval_results} == {"Translation de"}


def test_parses_are_no_translations_in_the_model_index():
    scores = {"bracketing_recall": 1.0, "bracketing_precision": 2.0, "bracketing_f1": 3.0, "tagging_accuracy": 4.0}
    scores |= {"average_crossing": 5.0, "no_crossing": 6.0, "two_or_less_crossing": 7.0, "exact_match": 8.0}
    parses = ParsingEvaluation(split="test", sentences=3, evalb_errors=1, bracketing_f1_by_length={}, **scores)
    results = eval_results(parses, ["en", "tree"], "WSJ")
    assert [(r.metric_type, r.metric_value) for r in results] == [
        ("f1", 3.0), ("recall", 1.0), ("precision", 2.0), ("accuracy", 4.0),
    ]  # fmt: skip
    assert {(r.task_type, r.task_name) for r in results} == {("token-classification", "Constituency parsing")}


def test_a_card_that_cannot_be_written_stays_as_it_was(evaluation, card, monkeypatch):
    def fill_the_disk(path, text, **how):
        path.write_bytes(text.encode()[:10])
        raise OSError(28, "No space left on device")

    before = card.read_bytes()
    monkeypatch.setattr(Path, "write_text", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        add_to_card(evaluation, card)
    assert card.read_bytes() == before
    assert list(card.parent.iterdir()) == [card]
