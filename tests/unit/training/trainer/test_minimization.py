"""Which form of the objective a device gets, and what is said of it."""

import os
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from flat_settings import make_settings

from training.gpu import objective as packed_module
from training.gpu.objective import PackedObjective
from training.gpu.recorded import RecordedObjective
from training.objective.loss import LabelSmoothedObjective
from training.trainer import minimization
from training.trainer.minimization import choose_packing, make_objective


def accelerator(device: str, precision: str = "bf16", sharded: bool = False) -> SimpleNamespace:
    kind = DistributedType.FSDP if sharded else DistributedType.NO
    return SimpleNamespace(device=torch.device(device), mixed_precision=precision, distributed_type=kind)


@pytest.mark.parametrize(
    ("precision", "settings", "sharded", "reason", "said"),
    [
        ("bf16", {}, False, None, "kernels in C, attention included"),
        ("bf16", {"torch_compile": True}, False, None, "PyTorch, not kernels in C: torch_compile is true"),
        ("bf16", {}, True, None, "PyTorch, not kernels in C: they do not go together with FSDP"),
        ("bf16", {}, False, "a reason", "PyTorch, not kernels in C: a reason"),
        ("no", {}, False, None, "kernels in C, attention included"),
    ],
)
@pytest.mark.parametrize("chosen", ["2000", None])  # by the user, or by nobody
def test_it_says_what_computes_between_products_and_that_does_it(
    random_model, monkeypatch, precision, settings, sharded, reason, said, chosen
):
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", chosen or "")  # so that it is restored
    if chosen is None:
        monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    monkeypatch.setattr(minimization, "why_no_kernels", lambda model, dtype: reason)
    lines = []
    place = accelerator("cpu", precision, sharded)
    objective = make_objective(random_model(), place, make_settings(**settings), False, lines.append)
    assert lines == [f"Between the matrix products: {said}"]
    with_kernels = said.startswith("kernels")
    dtypes = {"bf16": torch.bfloat16, "no": torch.float32}
    assert objective.kernels_dtype == (dtypes[precision] if with_kernels else None)
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == (chosen or ("512" if with_kernels else "64"))


@pytest.mark.parametrize(
    ("device", "settings", "sharded", "reason", "said"),
    [
        ("cuda", {}, False, None, "stand one after another, without padding"),
        ("cuda", {"rdrop_alpha": 5.0}, False, None, "are padded: R-Drop wants each batch twice"),
        ("cuda", {}, True, None, "are padded: FSDP wants whole layers"),
        ("cuda", {}, False, "a reason", "are padded: a reason"),
        ("cpu", {}, False, None, None),
    ],
)
@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("no", torch.float32)]
)
def test_it_says_whether_sentences_are_padded(
    random_model, monkeypatch, device, settings, sharded, reason, said, precision, dtype
):
    model, lines, asked = random_model(), [], []
    place = accelerator(device, precision, sharded)
    monkeypatch.setattr(packed_module, "why_not", lambda *given: asked.append(given) or reason)
    is_packed = choose_packing(model, place, make_settings(**settings).optimization, lines.append)
    assert is_packed == (said is not None and "padded:" not in said)
    assert lines == ([] if said is None else [f"Sentences {said}"])
    is_tried = device == "cuda" and not settings and not sharded
    assert asked == ([(model, torch.device(device), dtype)] if is_tried else [])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_padded_model_is_compiled_where_the_settings_say_so(random_model, monkeypatch, compiled):
    asked = []
    monkeypatch.setattr(LabelSmoothedObjective, "compile", lambda self, **options: asked.append(options))
    make_objective(random_model(), accelerator("cpu"), make_settings(torch_compile=compiled), False, print)
    assert asked == ([{"dynamic": True}] if compiled else [])


@pytest.mark.parametrize(("device", "precision", "wanted"), [
    ("cuda", "bf16", RecordedObjective), ("cuda", "no", RecordedObjective), ("cuda", "fp16", PackedObjective),
    ("cpu", "bf16", PackedObjective),
])  # fmt: skip
def test_loss_and_gradients_are_recorded_on_a_gpu_unless_the_loss_is_scaled(random_model, device, precision, wanted):
    place, lines, model = accelerator(device, precision), [], random_model()
    place.scaler = object() if precision == "fp16" else None
    objective = make_objective(model, place, make_settings(label_smoothing=0.3), True, lines.append)
    assert type(objective) is wanted
    packed = objective.objective if wanted is RecordedObjective else objective
    assert (packed.model, packed.label_smoothing) == (model, 0.3)
    if wanted is RecordedObjective:
        objective.recorder.say("a sentence")
        assert lines == ["a sentence"]
