"""The scorer as a metric of `evaluate`."""

import subprocess
import sys

import evaluate as hf_evaluate
import pytest

from training.settings import ROOT
from vaswani.scoring.protocols import score
from vaswani.scoring.scoring import TranslationScores


METRIC = ROOT / "src" / "vaswani" / "scoring"
REFERENCES = ["Er sagte: „Das Rich-Text-Format ist tot.“", "Heute regnet es in Köln, morgen nicht mehr."]
HYPOTHESES = ['Er sagte: "Das Rich-Text-Format ist alt."', "Es regnet heute in Köln, aber morgen nicht."]


def test_it_is_a_metric_that_loads_from_its_folder_without_this_project(tmp_path):
    code = f"""
import sys
sys.modules["vaswani"] = sys.modules["training"] = None
import evaluate
metric = evaluate.load({str(METRIC)!r})
row = metric.compute(predictions={HYPOTHESES!r}, references={REFERENCES!r}, target_lang="de")
print(sorted(row.items(), key=str))
"""
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sorted(score(HYPOTHESES, REFERENCES, "de").items(), key=str))


def test_the_metric_warns_before_it_scores():
    assert isinstance(TranslationScores(keep_in_memory=True), hf_evaluate.Metric)
    with pytest.warns(UserWarning, match="hold @@"):
        TranslationScores(keep_in_memory=True).compute(predictions=["gu@@ t"], references=["gut"])


def test_of_tokenized_text_the_metric_warns_only_where_it_is_empty():
    with pytest.warns(UserWarning, match="1 of 2 hypotheses are empty") as caught:
        TranslationScores(keep_in_memory=True).compute(
            predictions=["gu@@ t", ""], references=["gut", "gut"], tokenized=True
        )
    assert not any("hold @@" in str(warning.message) for warning in caught)


@pytest.mark.parametrize(
    "options", [{}, {"target_lang": "en"}, {"target_lang": None}, {"lowercase": True}, {"tokenized": True}]
)
def test_the_metric_passes_its_options_to_the_scorer(options):
    lowered = [text.lower() for text in HYPOTHESES]
    metric = TranslationScores(keep_in_memory=True)
    row = metric.compute(predictions=lowered, references=REFERENCES, **options)
    assert row == score(lowered, REFERENCES, **options)
    assert (row == score(lowered, REFERENCES)) == (not options)
