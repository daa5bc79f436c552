import argparse

import pytest
import torch

from training import benchmark
from training.benchmarks import generation
from training.benchmarks.generation import Contender, check, compare, copy_of, marian_like
from training.benchmarks.records import Rates
from vaswani.errors import UserError


def test_ours_in_bf16_is_compared_with_rows_of_as_many_beams():
    contenders = [
        Contender(name, beams, precision, lambda: None)
        for name, beams, precision in [
            ("ours", 1, "bf16"),
            ("ours", 4, "bf16"),
            ("MarianMT", 1, "fp32"),
            ("ours", 4, "fp32"),
        ]
    ]
    rows = compare(contenders, [Rates(median, 1.0, 99.0) for median in (20.0, 10.0, 5.0, 4.0)])
    assert [row.ours_is_times for row in rows] == [1.0, 1.0, 4.0, 2.5]
    assert [row.search for row in rows] == ["greedy", "beam 4", "greedy", "beam 4"]
    assert (rows[2].what, rows[2].precision) == ("MarianMT, target tokens/s", "fp32")
    assert (rows[2].median, rows[2].lowest, rows[2].highest) == (5.0, 1.0, 99.0)


def test_a_translation_that_is_too_short_is_no_measurement():
    options = argparse.Namespace(batch_sentences=2, new_tokens=3)
    check(torch.zeros(2, 3), options)
    for wrong in (torch.zeros(1, 3), torch.zeros(2, 2), [[1, 2, 3], [1, 2]]):
        with pytest.raises(AssertionError):
            check(wrong, options)


def test_marian_has_our_weights_and_our_positions(random_model):
    ours = random_model(d_model=16, encoder_attention_heads=2, decoder_attention_heads=2)
    marian = marian_like(ours)
    ids = torch.randint(1, 22, (2, 5))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids}
    torch.testing.assert_close(marian(**inputs).logits, ours(**inputs).logits, atol=1e-4, rtol=1e-4)


def test_a_restricted_model_has_no_marian(random_model):
    with pytest.raises(UserError, match="attention_restriction=3 must be none here: MarianMT cannot"):
        marian_like(random_model(attention_restriction=3))


def test_a_copy_in_another_precision_leaves_the_model_alone(random_model):
    model = random_model()
    copied = copy_of(model, torch.bfloat16, "cpu")
    assert (copied.dtype, model.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(copied.lm_head.weight, model.lm_head.weight.bfloat16())


def test_every_contender_translates_every_turn_and_the_first_turn_does_not_count(monkeypatch):
    said, times = [], iter([9.0, 9.0, 1.0, 2.0, 4.0, 4.0, 2.0, 8.0])
    contenders = [
        Contender("ours", 1, "bf16", lambda: said.append(1)),
        Contender("peer", 1, "fp32", lambda: said.append(2)),
    ]
    monkeypatch.setattr(generation, "enter", lambda *_: (contenders, []))

    def time_of(translate, device):
        translate()
        return next(times)

    monkeypatch.setattr(generation, "time_of", time_of)
    monkeypatch.setattr(generation.torch, "set_num_threads", lambda count: None)
    flags = ["--turns=3", "--batch_sentences=2", "--new_tokens=8", "--model_config=demo", "--device=cpu"]
    ours, peer = generation.run(benchmark.parse(["generate", *flags]))
    assert said == [1, 2] * 4
    assert (ours["median"], ours["lowest"], ours["highest"]) == (8.0, 4.0, 16.0)
    assert (peer["median"], peer["lowest"], peer["highest"], peer["ours in bf16 is times"]) == (4.0, 2.0, 8.0, 2.0)


def test_contenders_translate_the_same_sentences_to_the_same_length(tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "find_spec", lambda name: None)
    options = argparse.Namespace(batch_sentences=3, new_tokens=4, beams=2, device="cpu")
    contenders, missing = generation.enter(tiny_config(), options, tmp_path)
    assert [(contender.name, contender.beams) for contender in contenders[:5]] == [
        ("ours", 1),
        ("MarianMT", 1),
        ("ours", 2),
        ("MarianMT", 2),
        ("our model, transformers' beam", 2),
    ]
    assert [contender.precision for contender in contenders] == ["fp32"] * 5 + ["bf16"] * 5
    assert [row.what for row in missing] == ["CTranslate2: not installed (pip install ctranslate2)"]
    for contender in contenders:
        contender.translate()  # it checks the length itself
