import random

import pytest

from vaswani.scoring.protocols import score
from vaswani.scoring.significance import compare


def systems(*shares: float, sentences: int = 200) -> list[list[str]]:
    """Return references, and for each share a system that gets such a share of the words wrong."""
    generator = random.Random(3)
    words = [f"Wort{number}" for number in range(200)]
    references = [" ".join(generator.choices(words, k=15)) for _ in range(sentences)]

    def spoil(share: float) -> list[str]:
        return [
            " ".join(generator.choice(words) if generator.random() < share else word for word in line.split())
            for line in references
        ]

    return [references, *map(spoil, shares)]


def test_a_clearly_better_system_is_so_by_both_tests_and_protocols():
    references, worse, better = systems(0.3, 0.15)
    for name, result in compare(better, worse, references, "de").items():
        assert result["difference"] > 10, name
        assert result["system"] - result["baseline"] == pytest.approx(result["difference"], abs=1e-3)
        assert result["bootstrap_p_value"] < 0.01
        assert result["randomization_p_value"] < 0.01
        assert result["system_mean"] == pytest.approx(result["system"], abs=1)
        assert 0 < result["system_confidence"] < 5


def test_a_system_does_not_differ_from_itself():
    references, system = systems(0.3, sentences=50)
    for result in compare(system, list(system), references, "de").values():
        assert (result["difference"], result["bootstrap_p_value"], result["randomization_p_value"]) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize(("different", "smallest"), [(1, 1.0), (2, 0.5), (4, 0.125)])
def test_a_few_different_sentences_may_always_be_chance(different, smallest):
    references, system = systems(0.3, sentences=50)
    better = references[:different] + system[different:]
    for result in compare(better, system, references, "de").values():
        assert result["difference"] > 0
        assert smallest <= result["randomization_p_value"] < smallest + 0.05


def test_two_systems_that_are_equally_good_are_not_told_apart():
    references, one, other = systems(0.3, 0.3)
    result = compare(one, other, references, target_lang=None)
    assert list(result) == ["sacrebleu"]
    assert result["sacrebleu"]["difference"] != 0
    assert result["sacrebleu"]["randomization_p_value"] > 0.05
    assert result["sacrebleu"]["bootstrap_p_value"] > 0.05
    assert result["sacrebleu"]["bootstrap_p_value"] != result["sacrebleu"]["randomization_p_value"]  # two tests


def test_case_matters_to_both_protocols_unless_it_is_said_not_to():
    references, worse, system = systems(0.3, 0.1, sentences=30)
    lowered = [text.lower() for text in system]
    as_it_is = compare(system, worse, references, "de")
    for name, result in compare(lowered, worse, references, "de", lowercase=True).items():
        assert result["system"] == pytest.approx(as_it_is[name]["system"], abs=1e-3), name
    for name, result in compare(lowered, worse, references, "de").items():
        assert result["system"] < as_it_is[name]["system"] - 20, name


def test_the_scores_are_those_of_the_scorer():
    references, baseline, system = systems(0.3, 0.1, sentences=30)
    results = compare([*system[:-1], "Die Pkw-Maut-Pläne."], baseline, [*references[:-1], "Die Pkw-Maut."], "de")
    ours = score([*system[:-1], "Die Pkw-Maut-Pläne."], [*references[:-1], "Die Pkw-Maut."], "de")
    for name, result in results.items():
        assert result["system"] == pytest.approx(ours[name], abs=0.01), name


def test_of_tokenized_text_the_tokens_are_compared_by_one_protocol():
    texts = [[text.replace("Wort", "Wort.") for text in side] for side in systems(0.3, 0.1, sentences=30)]
    references, baseline, system = texts
    results = compare(system, baseline, references, "de", tokenized=True)
    assert list(results) == ["sacrebleu"]
    ours = score(system, references, "de", tokenized=True)["sacrebleu"]
    assert results["sacrebleu"]["system"] == pytest.approx(ours, abs=0.01)
    assert score(system, references, "de")["sacrebleu"] != pytest.approx(ours, abs=1)


def test_text_is_divided_as_its_language_is():
    references, system, baseline = ["我们今天去公园玩。"] * 6, ["我们今天去公园。"] * 6, ["我今天去公园玩。"] * 6
    found, ours = compare(system, baseline, references, "zh"), score(system, references, "zh")
    assert found["sacrebleu"]["system"] == pytest.approx(ours["sacrebleu"], abs=0.01)
    assert ours["sacrebleu"] > 50  # by 13a it is a single word
