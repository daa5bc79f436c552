import pytest
import torch

from training.benchmarks.translators.models import Models, copy_of, marian_like
from training.benchmarks.translators.work import Work
from vaswani.errors import UserError


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


def test_models_translate_in_one_process_and_in_several(random_model):
    ours = random_model()
    work = Work.of(ours.config, batches=2, sentences=3, new_tokens=4)
    models = Models(ours, marian_like(ours), work, 2, "cpu", list(range(10)), cores=2)
    entered = models.contenders()
    for contender in entered:
        contender.translate()  # it checks the length itself
    settings = [(contender.name, contender.precision, contender.setting, contender.beams) for contender in entered]
    assert settings[:3] == [
        ("ours", "fp32", "2 threads", 1),
        ("ours", "fp32", "2 threads", 2),
        ("ours", "bf16", "2 threads", 1),
    ]
    assert {("MarianMT", "bf16", "2 workers", 1), ("ours", "bf16", "2 workers", 2)} <= set(settings)
    assert all(contender.is_cut == (contender.name == "ours, shortlist") for contender in entered)
    assert {contender.setting for contender in entered if contender.is_cut} == {"2 workers"}


def test_where_int8_is_missing_bfloat16_has_the_shortlist(random_model, monkeypatch, capsys):
    monkeypatch.setattr("vaswani.models.int8_vaswani.kernel_problem", lambda: "no VNNI")
    ours = random_model()
    work = Work.of(ours.config, batches=1, sentences=2, new_tokens=2)
    entered = Models(ours, marian_like(ours), work, 2, "cpu", [0, 1], cores=1).contenders()
    assert {contender.precision for contender in entered if contender.is_cut} == {"bf16"}
    assert "int8" not in {contender.precision for contender in entered}
    assert "ours in int8 is left out: int8 is not possible here: no VNNI" in capsys.readouterr().err


def test_with_one_core_there_are_no_workers(random_model):
    ours = random_model()
    work = Work.of(ours.config, batches=1, sentences=2, new_tokens=2)
    models = Models(ours, marian_like(ours), work, 2, "cpu", [0, 1], cores=1)
    assert {contender.setting for contender in models.contenders()} == {"1 thread"}
