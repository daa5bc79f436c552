import dataclasses

import pytest
import torch
from transformers import CompileConfig
from transformers.generation import GenerationMixin
from transformers.testing_utils import CaptureLogger
from transformers.utils import logging

from training.benchmarks.translators import models, work
from training.benchmarks.translators.work import Setup, Work
from vaswani.models.fusion_vaswani import CannotCompile


def setup_of(random_model, cores):
    config = random_model().config
    return Setup(config, Work.of(config, batches=2, sentences=3, new_tokens=4), 2, "cpu", cores, list(range(10)))


def entered(setup):
    makers = (models.ours_in_float32, models.ours, models.ours_in_int8, models.marian)
    return [contender for make in makers for contender in make(setup)]


@pytest.fixture(autouse=True)
def as_many_threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("is_fast", [True, False])
def test_models_translate_in_one_process_and_in_several(is_fast, random_model, monkeypatch):
    monkeypatch.setattr(work, "multiplies_bfloat16", lambda: is_fast)
    contenders = entered(setup_of(random_model, cores=2))
    for contender in contenders:
        contender.translate()  # it checks the length itself
    settings = [(contender.name, contender.precision, contender.setting, contender.beams) for contender in contenders]
    assert not is_fast or [setting for setting in settings if setting[1] == "fp32"] == [
        ("ours", "fp32", "2 threads", 1),
        ("ours", "fp32", "2 threads", 2),
    ]
    precision = "bf16" if is_fast else "fp32"
    both = {(way, beams) for way in ("2 threads", "2 workers") for beams in (1, 2)}
    for name in ("ours", "MarianMT"):
        assert {(name, precision, *each) for each in both} <= set(settings)
    assert ("ours, stock beam", precision, "2 threads", 2) in settings
    assert len(settings) == len(set(settings))
    assert all(contender.is_cut == contender.name.endswith("shortlist") for contender in contenders)
    assert {contender.setting for contender in contenders if contender.is_cut} == {"2 workers"}


def test_each_contender_uses_its_precision_its_search_and_its_part_of_the_vocabulary(random_model, monkeypatch):
    setup, seen = setup_of(random_model, cores=1), []

    def generate(self, model, number, **settings):
        seen.append((type(model).__name__, model.dtype, settings))

    monkeypatch.setattr(Work, "generate", generate)
    contenders = entered(setup)
    seen.clear()  # whether it can be compiled was tried out
    for contender in contenders:
        contender.translate()
        (model, dtype, settings), *others = seen
        assert others == [(model, dtype, settings)]  # a call for each batch
        assert dtype == {"bf16": torch.bfloat16}.get(contender.precision, torch.float32)
        assert model == ("MarianMTModel" if contender.name == "MarianMT" else "VaswaniForConditionalGeneration")
        assert settings.pop("num_beams") == contender.beams
        assert ("logits_processor" in settings) == contender.is_cut
        assert ("compile_config" in settings) == ("compiled" in contender.name)
        assert ("length_penalty_alpha" in settings) == (contender.name == "ours, stock beam")
        seen.clear()


def test_transformers_own_loop_runs_for_the_contender_that_is_named_so(random_model, monkeypatch):
    loop, ran = GenerationMixin._beam_search, []
    monkeypatch.setattr(GenerationMixin, "_beam_search", lambda *args, **given: ran.append(1) or loop(*args, **given))
    for contender in models.ours(setup_of(random_model, cores=1)):
        ran.clear()
        contender.translate()
        assert bool(ran) == (contender.name == "ours, stock beam")


@pytest.mark.parametrize(("is_fast", "precision"), [(True, "bf16"), (False, "fp32")])
def test_where_int8_is_missing_the_fast_type_has_the_shortlist(is_fast, precision, random_model, monkeypatch, capsys):
    monkeypatch.setattr("vaswani.models.int8_vaswani.kernel_problem", lambda: "no VNNI")
    monkeypatch.setattr(work, "multiplies_bfloat16", lambda: is_fast)
    contenders = models.ours_in_int8(setup_of(random_model, cores=1))
    assert {(contender.precision, contender.is_cut) for contender in contenders} == {(precision, True)}
    assert "ours in int8 is left out: int8 is not possible here: no VNNI" in capsys.readouterr().err


def test_without_a_compiler_that_contender_is_left_out(random_model, monkeypatch, capsys):
    def generate(self, model, number, **settings):
        if "compile_config" in settings:
            raise CannotCompile("no g++")

    monkeypatch.setattr(Work, "generate", generate)
    contenders = models.ours_in_int8(setup_of(random_model, cores=1))
    assert not any("compiled" in contender.name for contender in contenders)
    if contenders[0].precision == "int8":
        assert "ours, compiled, is left out: no g++" in capsys.readouterr().err


def test_with_one_core_there_are_no_workers(random_model):
    assert {contender.setting for contender in entered(setup_of(random_model, cores=1))} == {"1 thread"}


def test_marian_is_not_warned_of_two_lengths_at_each_batch(random_model):
    with CaptureLogger(logging.get_logger("transformers.generation.utils")) as captured:
        for contender in models.marian(setup_of(random_model, cores=1)):
            contender.translate()
    assert captured.out == ""


def test_on_a_gpu_our_searches_are_recorded_too(random_model, monkeypatch):
    setup = dataclasses.replace(setup_of(random_model, cores=1), device="cuda")
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *given: self)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    seen = []
    monkeypatch.setattr(Work, "generate", lambda self, model, number, **settings: seen.append(settings))
    for contender in models.ours(setup):
        seen.clear()
        contender.translate()
        wanted = CompileConfig() if contender.name == "ours, compiled" else None
        assert all(settings.get("compile_config") == wanted for settings in seen)
    recorded = [contender for contender in models.ours(setup) if contender.name == "ours, compiled"]
    assert [(each.precision, each.setting, each.beams) for each in recorded] == [
        ("bf16", "GPU", 1),
        ("bf16", "GPU", 2),
    ]
