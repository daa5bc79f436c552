import json
from dataclasses import asdict, replace

import pytest
import torch
from accelerate.state import AcceleratorState

from training.benchmarks import contenders
from training.benchmarks.contenders import Meter, main, marian, rate_of
from training.benchmarks.processes import run_and_watch
from training.benchmarks.records import Turn
from training.benchmarks.training import launcher
from training.settings import ROOT
from training.trainer.model import load_config
from vaswani.errors import UserError
from vaswani.models.packing_vaswani import multiplies_bfloat16


FLAGS = ["--dataset_name=grammar", "--source_lang=en", "--target_lang=de", f"--config_name={ROOT}/hub_configs/demo"]
TURN = Turn("loader", "fp32", "cpu", [*FLAGS, "--vocab_size=1500"], tokens=30, seconds=100.0, sentences=2, folder="")
needs_bfloat16 = pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU takes minutes to multiply bfloat16")
LABELS = torch.tensor([[5, 6, 0], [7, 0, -100]])  # five target tokens


@pytest.fixture
def clock(monkeypatch):
    """Let every look at the clock be told by a test."""
    now = [0.0]
    monkeypatch.setattr(contenders.time, "perf_counter", lambda: now[0])
    return now


def test_a_turn_warms_up_for_a_third_of_its_tokens_and_its_rate_is_of_the_rest(clock):
    meter, answers = Meter(TURN), []
    for seconds in [10.0] * 2 + [0.5] * 6:  # 10 tokens slowly, then 30 of them fast
        clock[0] += seconds
        answers.append(meter.is_over(LABELS))
    assert answers == [False] * 7 + [True]
    assert meter.rate == 30 / 3.0


def test_garbage_is_collected_before_the_clock_starts(clock, monkeypatch):
    monkeypatch.setattr(contenders.gc, "collect", lambda: clock.__setitem__(0, clock[0] + 60.0))
    meter = Meter(TURN)
    for _ in range(8):
        clock[0] += 0.5
        meter.is_over(LABELS)
    assert clock[0] == 2 * 60.0 + 8 * 0.5  # before the warm-up, and before what is measured
    assert meter.rate == 30 / 3.0


def test_a_turn_is_over_when_its_time_is(clock):
    meter, answers = Meter(replace(TURN, tokens=10**9)), []
    for _ in range(4):
        clock[0] += 50.0
        answers.append(meter.is_over(LABELS))
    assert answers == [False, False, False, True]
    assert meter.rate == 10 / 100.0


def test_several_processes_count_their_tokens_together_and_decide_alike(clock, monkeypatch):
    def all_reduce(sums):
        sums += torch.tensor([5.0, 4.0])  # of the other process, which took 4 seconds

    monkeypatch.setattr(contenders.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(contenders.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(contenders.distributed, "get_world_size", lambda: 2)
    clock[0] = 10.0
    assert contenders.together(7.0, 2.0) == (12.0, 3.0)


@pytest.mark.parametrize(("rank", "order"), [(0, ["prepare", "barrier"]), (1, ["barrier", "prepare"])])
def test_the_first_process_prepares_the_data_before_the_others(monkeypatch, rank, order):
    seen, planned = [], []
    prepare, plan = contenders.prepare, contenders.plan_updates
    monkeypatch.setattr(contenders, "plan_updates", lambda *given: planned.append(given[2:]) or plan(*given))
    monkeypatch.setattr(contenders, "prepare", lambda *given: [seen.append("prepare"), prepare(*given)][1])
    monkeypatch.setattr(contenders.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(contenders.distributed, "barrier", lambda: seen.append("barrier"))
    next(contenders.our_batches(replace(TURN, processes=2)))
    assert seen == order
    assert planned == [(rank, 2)]


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_share_the_cores_and_the_first_one_tells(rank, monkeypatch, capsys):
    threads = []
    monkeypatch.setitem(contenders.CONTENDERS, "loader", lambda turn: 5.0)
    monkeypatch.setattr(contenders.torch, "set_num_threads", threads.append)
    monkeypatch.setattr(contenders, "usable_cores", lambda: 6)
    for name in ("init_process_group", "destroy_process_group"):
        monkeypatch.setattr(contenders.distributed, name, lambda *given: None)
    monkeypatch.setattr(contenders.distributed, "get_rank", lambda: rank)
    main(replace(TURN, processes=2))
    assert threads == [3]
    assert capsys.readouterr().out == ('{"rate": 5.0}\n' if rank == 0 else "")


def test_several_processes_train_one_model(monkeypatch):
    together = []
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", together.append)
    monkeypatch.setattr(contenders, "rate_of", lambda *given: 1.0)
    for processes in (1, 2):
        contenders.train_on_our_batches(replace(TURN, processes=processes))
        assert len(together) == processes - 1


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs_bfloat16)])
def test_a_turn_is_taken_in_its_precision(precision, monkeypatch):
    seen, types, model = [], [], marian(TURN)
    model.register_forward_pre_hook(lambda *given: seen.append(torch.is_autocast_enabled("cpu")))
    monkeypatch.setattr(contenders, "marian", lambda turn: model)
    turn = replace(TURN, precision=precision, tokens=1)
    contenders.train_on_our_batches(turn)
    assert set(seen) == {precision == "bf16"}
    monkeypatch.setattr(contenders.torch, "matmul", lambda left, right: types.append((left.dtype, left.shape)))
    monkeypatch.setattr(contenders, "fastest", lambda product: product() or 0.5)
    assert contenders.multiply(turn) == 2 * 2048**3 / 0.5
    assert types == [(torch.bfloat16 if precision == "bf16" else torch.float32, (2048, 2048))]


def test_marian_is_trained_in_two_processes(tmp_path):
    turn = replace(TURN, contender="batched", tokens=3000, seconds=20.0, folder=str(tmp_path), processes=2)
    flags = [
        "--max_tokens_per_batch=500",
        "--max_source_length=64",
        "--max_target_length=64",
        f"--output_dir={tmp_path}",
    ]
    turn = replace(turn, flags=[*turn.flags, *flags])
    output, _ = run_and_watch([*launcher(2), "-m", "training.benchmarks.contenders", json.dumps(asdict(turn))])
    assert len(output.splitlines()) == 1
    assert json.loads(output)["rate"] > 0


def test_a_gpu_is_asked_at_every_tenth_update_only(clock, monkeypatch):
    asked = []
    monkeypatch.setattr(contenders.torch.cuda, "synchronize", lambda: asked.append(meter.updates))
    meter = Meter(replace(TURN, device="cuda"))
    while not meter.is_over(LABELS):
        clock[0] += 1.0
        assert meter.updates < 100
    assert asked == [10, 20]


def test_no_batch_is_trained_on_after_the_turn_is_over():
    batches = iter([LABELS] * 20)
    assert rate_of(TURN, batches, lambda labels: labels) > 0
    assert len(list(batches)) == 20 - 2 - 6


def test_a_loader_is_read_again_and_again():
    batches = contenders.endlessly([1, 2])
    assert [next(batches) for _ in range(5)] == [1, 2, 1, 2, 1]


def test_marian_has_the_architecture_of_our_config(monkeypatch):
    config = load_config("demo")
    config.attention_dropout, config.activation_dropout = 0.2, 0.3
    monkeypatch.setattr(contenders, "load_config", lambda name: config)
    model = marian(replace(TURN, attention="eager"))
    config = model.config
    assert (config.vocab_size, config.d_model, config.encoder_layers, config.decoder_layers) == (1500, 192, 2, 2)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (4, 4)
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim, config.dropout) == (512, 512, 0.0)
    assert (config.attention_dropout, config.activation_dropout) == (0.2, 0.3)
    assert (config.activation_function, config.scale_embedding) == ("relu", True)
    assert (config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (1499, 0, 1499)
    assert config._attn_implementation == "eager"
    assert model.training


def test_a_restricted_model_has_no_marian(tiny_config, tmp_path):
    tiny_config(attention_restriction=3).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="attention_restriction=3 must be none here: MarianMT cannot"):
        marian(replace(TURN, flags=[*FLAGS[:-1], f"--config_name={tmp_path}"]))


@pytest.fixture
def accelerate_as_it_was(monkeypatch):
    """Undo what transformers' Trainer leaves behind in this process: its precision."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_trainer_gets_neighbors_of_similar_length(accelerate_as_it_was, monkeypatch, tmp_path):
    given = {}
    arguments = contenders.Seq2SeqTrainingArguments
    monkeypatch.setattr(
        contenders, "Seq2SeqTrainingArguments", lambda **named: given.update(named) or arguments(**named)
    )
    assert contenders.train_with_the_trainer(replace(TURN, folder=str(tmp_path))) > 0
    assert (given["train_sampling_strategy"], given["per_device_train_batch_size"]) == ("group_by_length", 2)


@pytest.mark.parametrize("contender", sorted(contenders.CONTENDERS))
def test_a_turn_is_taken_by_the_contender_that_it_names_and_told_as_json(contender, monkeypatch, capsys):
    monkeypatch.setitem(contenders.CONTENDERS, contender, lambda turn: float(turn.tokens))
    monkeypatch.setattr(contenders.torch, "set_num_threads", lambda count: None)
    cudnn = []
    monkeypatch.setattr(contenders.torch.backends.cuda, "enable_cudnn_sdp", cudnn.append)
    main(replace(TURN, contender=contender))
    assert json.loads(capsys.readouterr().out) == {"rate": 30.0}
    assert cudnn == [False]


def test_every_contender_is_under_its_own_name():
    assert {
        "gemm": contenders.multiply,
        "loader": contenders.load,
        "example": contenders.train_as_the_example_does,
        "trainer": contenders.train_with_the_trainer,
        "batched": contenders.train_on_our_batches,
    } == contenders.CONTENDERS
