"""What is estimated of memory, and what is said where there is less."""

import sys
from dataclasses import replace

import pytest
import torch

from training.benchmarks.processes import run_and_watch
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration, memory
from vaswani.ensemble import Ensemble
from vaswani.memory import Batch, Forecast, available_bytes, batch_bytes, predict_peak
from vaswani.models.int8_vaswani import kernel_problem, quantize


BATCH = Batch(sentences=64, source_length=32, output_length=82, num_beams=4)
SMALL = {"vocab_size": 8000, "d_model": 256} | {
    f"{stack}_{part}": value
    for stack in ("encoder", "decoder")
    for part, value in {"layers": 3, "ffn_dim": 1024, "attention_heads": 4}.items()
}
WORDS = ["one two", "three", "", "four five six"]


def bytes_of(batch: Batch = BATCH, itemsize: int = 4, **fields) -> float:
    return batch_bytes(VaswaniConfig(**SMALL | fields), batch, itemsize, itemsize)


def peak_of(batches, weight_bytes, dtype=torch.float32, cache_dtype=torch.float32, workers=1) -> float:
    return predict_peak(VaswaniConfig(**SMALL), batches, weight_bytes, dtype, cache_dtype, workers)


@pytest.mark.parametrize("field", ["sentences", "source_length", "output_length", "num_beams"])
def test_more_of_anything_in_a_batch_takes_more(field):
    assert bytes_of(replace(BATCH, **{field: 2 * getattr(BATCH, field)})) > 1.02 * bytes_of()


@pytest.mark.parametrize(
    ("field", "value"), [("vocab_size", 32_000), ("d_model", 512), ("decoder_layers", 6), ("v_head_dim", 128)]
)
def test_a_larger_model_takes_more(field, value):
    assert bytes_of(**{field: value}) > 1.1 * bytes_of()


def test_a_batch_takes_the_sum_of_its_parts():
    states = 64 * 32 * (1 + 4) * 256
    caches = (64 * 32 + 64 * 4 * (16 + 1.8 * (82 - 16))) * 3 * 4 * 2 * 64
    logits_and_probabilities = 2 * 64 * 4 * 8000
    assert bytes_of() == pytest.approx(1.15 * 4 * (states + caches + logits_and_probabilities))


def test_weights_that_are_rearranged_take_more_than_twice_themselves():
    floor = peak_of([], 0)
    for dtype, copies in ((torch.float32, 1.25), (torch.bfloat16, 2.1), (torch.int8, 2.1)):
        assert peak_of([], 1e9, dtype) - floor == pytest.approx(copies * 1e9)


def test_twice_the_sentences_and_half_the_precision_take_the_same():
    assert bytes_of(replace(BATCH, sentences=128), itemsize=2) == bytes_of()


def test_int8_takes_less_for_the_weights_alone():
    wide, narrow = (torch.float32, torch.float32), (torch.int8, torch.float32)
    assert peak_of([BATCH], 4e8, *wide) - peak_of([BATCH], 1e8, *narrow) > 2e8
    assert peak_of([BATCH], 0, *wide) == peak_of([BATCH], 0, *narrow)


def test_narrow_keys_and_values_take_half():
    empty = replace(BATCH, output_length=0)
    wide, narrow = (
        [peak_of([batch], 0, torch.int8, dtype) for batch in (BATCH, empty)]
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert narrow[0] < wide[0]
    assert narrow[0] - narrow[1] == pytest.approx((wide[0] - wide[1]) / 2)


def test_restricted_attention_bounds_the_cache():
    long = replace(BATCH, output_length=1000)
    assert bytes_of(long, attention_restriction=82) == bytes_of()
    assert bytes_of(long) > 5 * bytes_of()


def test_changed_logits_and_kept_scores_take_more_of_the_vocabulary():
    plain, changed, kept = (
        bytes_of(replace(BATCH, **extra)) for extra in ({}, {"processes_logits": True}, {"keeps_scores": True})
    )
    rows = 64 * 4 * 8000
    assert changed - plain == pytest.approx(memory.COPIES_OF_BATCH * rows * 8)
    assert kept - changed == pytest.approx(memory.COPIES_OF_BATCH * rows * 4 * 82)


def test_workers_hold_the_greatest_batches_at_the_same_time():
    small = replace(BATCH, sentences=16)
    one, two, nine = (peak_of([small, BATCH, small], 3e7, workers=workers) for workers in (1, 2, 9))
    assert one == peak_of([BATCH], 3e7)
    assert two - one == pytest.approx(bytes_of(small))
    assert nine - two == pytest.approx(bytes_of(small))  # there is no fourth


@pytest.mark.parametrize(
    ("setting", "kernels"), [(None, [200, 600, 1024]), ("256", [200, 256, 256]), ("many", [200, 600, 1024])]
)
def test_a_long_text_takes_as_many_kernels_as_onednn_keeps(setting, kernels, monkeypatch):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    if setting is not None:
        monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", setting)
    for dtype in (torch.bfloat16, torch.int8):
        assert [memory.kernel_bytes(batches, dtype) / memory.KERNEL_BYTES for batches in (1, 3, 40)] == kernels
    assert memory.kernel_bytes(40, torch.float32) == 0


PROGRAM = """
import sys, torch
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
model = VaswaniForConditionalGeneration(VaswaniConfig(**{config})).eval()
torch.set_num_threads(1)
model.generate(torch.randint(1, 7999, (64, 32)), num_beams=4, max_new_tokens=24, min_new_tokens=24)
"""


def test_a_real_process_holds_about_as_much_as_estimated():
    _, peak = run_and_watch([sys.executable, "-c", PROGRAM.format(config=SMALL)])
    estimate = peak_of([replace(BATCH, output_length=24)], 4 * 7.6e6)
    assert 0.75 < estimate / peak < 1.25


JOINED = """
import torch
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.ensemble import Ensemble
members = [VaswaniForConditionalGeneration(VaswaniConfig(**{config})).eval() for _ in range(2)]
torch.set_num_threads(1)
Ensemble(members).generate(torch.randint(1, 31999, (128, 8)), num_beams=4, max_new_tokens=8, min_new_tokens=8)
"""


def test_a_real_ensemble_of_many_types_holds_about_as_much_as_estimated():
    sizes = SMALL | {"vocab_size": 32_000, "d_model": 64}
    _, peak = run_and_watch([sys.executable, "-c", JOINED.format(config=sizes)])
    members = [VaswaniForConditionalGeneration(VaswaniConfig(**sizes)) for _ in range(2)]
    estimate = Forecast(Ensemble(members), {"num_beams": 4, "max_new_tokens": 8}).peak([8] * 128, 1024)
    assert 0.75 < estimate / peak < 1.25


@pytest.fixture
def forecast(random_model, tiny_config, monkeypatch):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)  # run.py sets it, in tests too
    return Forecast(random_model(tiny_config(vocab_size=265)), {"num_beams": 4})


def test_enough_memory_needs_no_words(forecast, tokenizer, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**12)
    assert forecast.shortage(tokenizer, WORDS, 4096) is None


def test_a_shortage_names_need_rest_and_flags(forecast, tokenizer, monkeypatch):
    monkeypatch.setattr(memory, "FLOOR_BYTES", 0)
    lengths = [len(ids) for ids in tokenizer([words for words in WORDS if words]).input_ids]
    whole, part = forecast.peak(lengths, 64), forecast.peak(lengths, 16)
    assert whole > 1.4 * part
    monkeypatch.setattr(memory, "available_bytes", lambda: int(part))
    monkeypatch.setattr(memory, "_gigabytes", lambda count: f"{count:.0f} B")
    said = forecast.shortage(tokenizer, WORDS, 64)
    assert said.startswith(f"this may need {whole:.0f} B of memory, but {int(part)} B are available: lower --max_")
    assert said.endswith(" or --num_beams=4")
    tokens = int(said.split("--max_batch_tokens=64 (with ")[1].split()[0])
    assert forecast.peak(lengths, tokens) <= int(part) < forecast.peak(lengths, 2 * tokens)


def test_a_greedy_search_of_single_sentences_can_lower_nothing(forecast, tokenizer, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1_000_000)
    said = replace(forecast, arguments={"num_beams": 1}).shortage(tokenizer, WORDS[:1], 1)
    tokens = len(tokenizer(WORDS[0]).input_ids)
    assert said == f"this may need 0.39 GB of memory, but 0.001 GB are available: the longest line has {tokens} tokens"


def test_a_very_long_line_takes_the_square_of_its_tokens_whatever_the_beams(forecast, tokenizer, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: int(2e9))
    line = "x" * 20_000
    tokens, heads = len(tokenizer(line).input_ids), forecast.model.config.encoder_attention_heads
    peak = forecast.peak([tokens], 64)
    assert 1 < peak / (2 * 4 * heads * tokens**2) < 1.5
    said = forecast.shortage(tokenizer, [line], 64)
    assert said is not None
    assert said.endswith(f"2 GB are available: the longest line has {tokens:,} tokens")


@pytest.mark.parametrize("case", ["nobody tells", "another model", "nothing to do"])
def test_what_cannot_be_estimated_is_not_warned_of(case, forecast, tokenizer, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: None if case == "nobody tells" else 1)
    if case == "another model":
        monkeypatch.setattr(type(forecast.model.config), "model_type", "recurrent")
    sentences = ["", " "] if case == "nothing to do" else WORDS
    assert forecast.shortage(tokenizer, sentences, 4096) is None


def test_references_are_counted_where_they_are_scored(forecast):
    large = VaswaniConfig(vocab_size=100_000)
    assert memory.likelihood_bytes(large, 4096, 4) == 4096 * 100_000 * 8
    assert memory.likelihood_bytes(large, 4096, 2) == 4096 * 100_000 * 10
    greedy = replace(forecast, arguments={"num_beams": 1, "max_new_tokens": 1})
    scored = replace(greedy, with_likelihood=True)
    floor = greedy.peak([1], 1)
    assert scored.peak([8] * 100, 4096) - floor == pytest.approx(800 * 265 * 8, rel=0.05)
    assert greedy.peak([8] * 100, 4096) < scored.peak([8] * 100, 4096)
    forecast.model.config.vocab_size = 100_000
    assert scored.peak([800], 16) == scored.peak([800], 800) > 800 * 100_000 * 8  # a batch of its own


def test_workers_share_the_sentences_out(forecast, monkeypatch):
    monkeypatch.setattr(memory, "FLOOR_BYTES", 0)
    two, nine = (replace(forecast, workers=workers) for workers in (2, 9))
    assert [batch.sentences for batch in forecast._batches([8] * 64, 4096)] == [64]
    assert [batch.sentences for batch in two._batches([8] * 64, 4096)][:2] == [32, 16]
    assert two.peak([8] * 64, 4096) == pytest.approx(forecast.peak([8] * 48, 4096), rel=0.02)  # both at once
    assert nine.peak([8] * 64, 4096) == forecast.peak([8] * 64, 4096)  # a single batch, in a single process


def test_every_worker_has_kernels_of_its_own(forecast, monkeypatch):
    forecast.model.to(torch.bfloat16)
    two = replace(forecast, workers=2)
    assert two.peak([8], 16) == forecast.peak([8], 16)  # a batch, in a process
    peaks = [case.peak([8, 8, 8], 16) for case in (forecast, two)]  # 2 batches
    monkeypatch.setattr(memory, "KERNEL_BYTES", 0)
    without = [case.peak([8, 8, 8], 16) for case in (forecast, two)]
    assert peaks[0] - without[0] == pytest.approx(400 * 0.6e6)
    assert peaks[1] - without[1] == pytest.approx(800 * 0.6e6)


def test_keys_and_values_are_counted_in_the_type_of_attention(forecast, monkeypatch):
    peaks = []
    for dtype in (torch.bfloat16, torch.float32):
        monkeypatch.setattr(memory, "attention_dtype", lambda model, dtype=dtype: dtype)
        peaks.append(forecast.peak([8] * 64, 4096))
    assert peaks[0] < peaks[1]


@pytest.mark.skipif(kernel_problem() is not None, reason=str(kernel_problem()))
def test_a_quantized_model_makes_kernels(forecast, monkeypatch):
    quantize(forecast.model)
    peak = forecast.peak([8], 16)
    monkeypatch.setattr(memory, "KERNEL_BYTES", 0)
    assert peak > forecast.peak([8], 16)


def test_a_shortage_names_how_many_kernels_are_kept(forecast, tokenizer, monkeypatch):
    forecast.model.to(torch.bfloat16)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1_000_000)
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    assert forecast.shortage(tokenizer, WORDS[:1], 1).endswith(
        "available: lower ONEDNN_PRIMITIVE_CACHE_CAPACITY=64 or --num_beams=4"
    )


def test_outputs_are_as_long_as_the_settings_allow(forecast):
    assert forecast._output_length(10) == 60
    assert replace(forecast, arguments={"max_new_tokens": 7})._output_length(10) == 7
    assert replace(forecast, arguments={"min_new_tokens": 70})._output_length(10) == 70
    assert replace(forecast, arguments={"min_length": 71})._output_length(10) == 70
    forecast.model.generation_config.extra_target_tokens = 300
    assert forecast._output_length(10) == 310
    forecast.model.generation_config.extra_target_tokens = 0
    assert forecast._output_length(10) == 10
    forecast.model.generation_config.max_length = 20  # transformers' own default, which nobody asked for
    assert forecast._output_length(10) == 10
    forecast.model.generation_config.max_length = 31
    assert forecast._output_length(10) == 30
    assert replace(forecast, arguments={"extra_target_tokens": 50})._output_length(10) == 60
    assert replace(forecast, arguments={"max_length": 9})._output_length(10) == 8
    forecast.model.generation_config.max_new_tokens = 9
    assert forecast._output_length(10) == 9


def test_an_ensemble_takes_the_sum_of_its_members_and_what_joins_them(forecast, random_model, tokenizer, monkeypatch):
    monkeypatch.setattr(memory, "FLOOR_BYTES", 0)
    monkeypatch.setattr(memory, "KERNEL_BYTES", 0)
    larger = random_model(vocab_size=265, d_model=64).to(torch.bfloat16)
    alone = [replace(forecast, model=model) for model in (forecast.model, larger)]
    both = replace(forecast, model=Ensemble([forecast.model, larger]))
    other_way = replace(forecast, model=Ensemble([larger, forecast.model]))
    for how, sentences in (({}, 32), ({"with_likelihood": True}, 32), ({"workers": 2}, 32 + 16)):  # 256 tokens in each
        peaks = [replace(case, **how).peak([8] * 64, 256) for case in (*alone, both, other_way)]
        assert peaks[2] == pytest.approx(peaks[0] + peaks[1] + 1.15 * 12 * sentences * 4 * 265)
        assert peaks[3] == pytest.approx(peaks[2])
    without = both.peak([8], 16)
    monkeypatch.setattr(memory, "KERNEL_BYTES", 0.6e6)
    assert both.peak([8], 16) - without == pytest.approx(200 * 0.6e6)  # of the one in bfloat16, and of one process
    monkeypatch.setattr(memory, "FLOOR_BYTES", 1e9)
    assert 1e9 < both.peak([8], 16) < 1.2e9  # one process
    monkeypatch.setattr(memory, "available_bytes", lambda: 1_000_000)
    assert both.shortage(tokenizer, WORDS, 64).startswith("this may need 1.1 GB of memory")


def test_each_batch_is_estimated_as_it_will_be(forecast):
    greedy = {"arguments": {"num_beams": 1}, "with_scores": True}
    plain, changed, scored, kept = (
        list(replace(forecast, **extra)._batches([3, 9, 3], 9))
        for extra in ({}, {"is_constrained": True}, {"with_scores": True}, greedy)
    )
    batches = [Batch(1, 9, 59, 4), Batch(2, 3, 53, 4)]
    assert plain == scored == batches  # our beam search scores without keeping anything
    assert changed == [replace(batch, processes_logits=True) for batch in batches]
    assert kept == [replace(batch, num_beams=1, keeps_scores=True) for batch in batches]


def test_kept_scores_leave_room_for_fewer_sentences(forecast):
    forecast.model.config.vocab_size = 10**6
    greedy = replace(forecast, arguments={"num_beams": 1})
    scored = replace(greedy, with_scores=True)
    sizes = [[batch.sentences for batch in case._batches([8] * 64, 4096)] for case in (greedy, scored)]
    assert sizes[0] == [64]
    assert sum(sizes[1]) == 64
    assert max(sizes[1]) < 64


def test_beams_are_those_of_the_call_else_those_of_the_model(forecast):
    forecast.model.generation_config.num_beams = 3
    assert (forecast.num_beams, replace(forecast, arguments={}).num_beams) == (4, 3)
    forecast.model.generation_config.num_beams = None
    assert replace(forecast, arguments={}).num_beams == 1


def test_a_line_is_as_long_as_the_table_of_positions_at_most(random_model, tokenizer, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1_000_000)
    model = random_model(vocab_size=265, position_embedding_type="learned", max_position_embeddings=12)
    said = Forecast(model, {"num_beams": 1}).shortage(tokenizer, ["x" * 100], 1)
    assert said.endswith(": the longest line has 12 tokens")  # the others are cut off


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A /proc and a /sys/fs/cgroup of one's own."""
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory.os, "sysconf", lambda name: 4096)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\nHugePages_Total: 0\n")
    (tmp_path / "proc" / "self" / "statm").write_text("900 100 50 1 0 1 0\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "cgroup").mkdir()
    return tmp_path


def limit(folder, name, most, used, files=0):
    folder.mkdir(parents=True, exist_ok=True)
    of_version = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}
    (folder / name).write_text(f"{most}\n")
    (folder / of_version[name]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {files}\nactive_file 7\n")


def test_without_limits_the_machine_decides(system):
    assert available_bytes() == 5000 * 1024 + 100 * 4096
    limit(system / "cgroup", "memory.max", "max", 10)
    assert available_bytes() == 5000 * 1024 + 100 * 4096


def test_the_tightest_limit_of_a_group_or_one_around_it_counts(system):
    (system / "proc" / "self" / "cgroup").write_text("0::/outer/inner\n")
    limit(system / "cgroup" / "outer", "memory.max", 900_000, 500_000, files=50_000)
    limit(system / "cgroup" / "outer" / "inner", "memory.max", 2_000_000, 500_000)
    assert available_bytes() == 450_000 + 100 * 4096


def test_the_older_groups_count_too(system):
    (system / "proc" / "self" / "cgroup").write_text("9:name=systemd:/\n4:cpu,memory:/box\n0::/\n")
    limit(system / "cgroup" / "memory" / "box", "memory.limit_in_bytes", 800_000, 900_000)
    assert available_bytes() == 100 * 4096  # what it holds already, and nothing beside it


def test_another_system_tells_nothing(system):
    (system / "proc" / "meminfo").unlink()
    assert available_bytes() is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_this_machine_tells():
    assert 1e8 < available_bytes() < 1e15
