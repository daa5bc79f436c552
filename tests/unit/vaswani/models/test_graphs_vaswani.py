"""Recorded steps against steps that are not, on a CPU by a recorder that keeps to the rules of CUDA's."""

import copy
import gc
import itertools
from weakref import ref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import CompileConfig

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.models import graphs_vaswani
from vaswani.models.allowed_tokens_vaswani import AllowedTokens
from vaswani.models.fusion_vaswani import AS_WRITTEN, Fused
from vaswani.models.graphs_vaswani import (
    KEPT,
    RECORDED,
    RecordedState,
    RecordedStep,
    Room,
    StaticCache,
    rounded,
)
from vaswani.models.incremental_vaswani import IncrementalState


PAD = 22
CLOSE = {"rtol": 1e-9, "atol": 1e-9}  # in float64
VARIANTS = [
    {"decoder_layers": 3, "encoder_attention_heads": 4, "head_dim": 6, "v_head_dim": 4},
    {"attention_bias": False, "tie_word_embeddings": False},
    {"position_embedding_type": "learned", "max_position_embeddings": 40},
    {"activation_function": "swish", "layer_norm_eps": 0.1, "lm_head_bias": True},
]


class Tape(TorchDispatchMode):
    """What PyTorch has done, to be done again: the same operations, from and to the same memory.

    Like a CUDA graph it repeats no Python, and refuses what waits for a value or brings one from Python.
    """

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            raise RuntimeError(f"{operation} waits")
        outputs = operation(*args, **(kwargs or {}))
        # Where it lies now, wherever a weight may lie later.
        given, found = tree_map_only(torch.Tensor, torch.Tensor.detach, ((args, kwargs or {}), outputs))
        self.operations.append((operation, *given, tree_leaves(found)))
        return outputs

    def play(self) -> None:
        for operation, args, kwargs, before in self.operations:
            for old, new in zip(before, tree_leaves(operation(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record_on_tape(function, device):
    function()
    with Tape() as tape:
        function()
    return tape.play


ON_TAPE = Fused(record=record_on_tape)


@pytest.fixture(autouse=True)
def taped(monkeypatch):
    """Let models on a CPU record on tape where they would compile."""
    monkeypatch.setattr(
        VaswaniForConditionalGeneration, "fused", lambda self, config: AS_WRITTEN if config is None else ON_TAPE
    )


@pytest.fixture
def recordings(monkeypatch) -> list[Room]:
    """Return a list to which the rooms of steps are added when they are recorded."""
    rooms, init = [], RecordedStep.__init__

    def noted(self, decoder, room, record):
        rooms.append(room)
        init(self, decoder, room, record)

    monkeypatch.setattr(RecordedStep, "__init__", noted)
    return rooms


@pytest.fixture
def small_rooms(monkeypatch):
    for name, least in (("LEAST_SENTENCES", 1), ("LEAST_SOURCE", 2), ("LEAST_TARGET", 4)):
        monkeypatch.setattr(graphs_vaswani, name, least)


@pytest.fixture
def lively_model(random_model):
    """Return a factory of models in float64 whose translations differ in length and in words."""

    def make(**changes):
        model = random_model(**changes).double()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" not in name:
                    parameter.normal_(0, 0.4)
        return model

    return make


def sources(*lengths: int) -> dict[str, torch.Tensor]:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, PAD, mask.shape).masked_fill(~mask, PAD)
    return {"input_ids": ids, "attention_mask": mask.long()}


def assert_alike(model, source, **how):
    """Make sure that a search finds the same with recorded steps and without; return what it finds."""
    how = {"extra_target_tokens": 20, "return_dict_in_generate": how.get("num_beams", 1) > 1} | how
    expected, found = model.generate(**source, **how), model.generate(**source, **how, compile_config=CompileConfig())
    if how["return_dict_in_generate"]:
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, **CLOSE)
        expected, found = expected.sequences, found.sequences
    assert torch.equal(found, expected)
    return found


def differs(model, source) -> bool:
    """Tell whether recorded steps give translations other probabilities."""
    how = {"num_beams": 2, "max_new_tokens": 20, "min_new_tokens": 20, "return_dict_in_generate": True}
    expected, found = (
        model.generate(**source, **how, compile_config=config).sequences_scores for config in (None, CompileConfig())
    )
    return not torch.allclose(found, expected, **CLOSE)


def state_of(model, source, num_beams, fused):
    states = model.model.encoder(**source).last_hidden_state.repeat_interleave(num_beams, 0)
    mask = source["attention_mask"].repeat_interleave(num_beams, 0)
    return model.decoder_state(num_beams, {"encoder_outputs": (states,), "attention_mask": mask}, fused)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("variant", [{}, *VARIANTS], ids=str)
@torch.no_grad()
def test_each_step_gives_the_same_logits(variant, num_beams, lively_model, small_rooms, recordings):
    model, source = lively_model(**variant), sources(5, 7, 2, 6, 1, 3, 7, 4, 0)  # one of padding alone
    states = [state_of(model, source, num_beams, fused) for fused in (AS_WRITTEN, ON_TAPE)]
    assert [type(state) for state in states] == [IncrementalState, RecordedState]
    count, parents, seen = 9, None, []
    for step in range(32):
        if step in (6, 11, 13, 25):
            kept = torch.randperm(count)[: {6: 6, 11: 2, 13: 2, 25: 1}[step]]
            count = len(kept)
            for state in states:
                state.select(kept)
            parents = None if parents is None else parents[kept]
        tokens = torch.randint(0, 23, (count, num_beams, 3 if step == 0 else 1))
        expected, found = (state.step(tokens, parents) for state in states)
        torch.testing.assert_close(found, expected, **CLOSE)
        seen.append(found[0].clone())
        found.fill_(torch.nan)  # as a search may
        parents = torch.randint(0, num_beams, (count, num_beams)) if step % 5 else None
    rooms = [(12, 4), (12, 8), (12, 12), (12, 16), (2, 16), (2, 24), (2, 32), (2, 48)]
    assert [(room.sentences, room.target) for room in recordings] == rooms
    # They tell one step from another.
    assert not any(torch.allclose(one, other, rtol=0, atol=1e-4) for one, other in itertools.pairwise(seen))


@torch.no_grad()
def test_fewer_logits_are_of_the_tokens_asked_for(lively_model):
    model, source, ids = lively_model(lm_head_bias=True), sources(5, 7), torch.tensor([3, 4, 9])
    whole, cut = (state_of(model, source, 2, ON_TAPE) for _ in range(2))
    cut.cut_output(ids)
    tokens = torch.randint(1, PAD, (2, 2, 1))
    torch.testing.assert_close(cut.step(tokens, None), whole.step(tokens, None)[:, ids], **CLOSE)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_searches_find_the_same(variant, num_beams, lively_model, small_rooms):
    lengths = set()
    for seed in range(3):
        torch.manual_seed(seed)
        model = lively_model(**variant)
        for source in (sources(5, 9, 2, 12, 7), sources(3, 3), sources(11, 1, 8, 4, 4, 9, 10, 2, 3)):
            found = assert_alike(model, source, num_beams=num_beams)
            lengths |= set((found != PAD).sum(1).tolist())
    prefix = torch.tensor([[PAD, 5, 3]]).expand(len(found), -1)
    assert_alike(model, source, num_beams=num_beams, decoder_input_ids=prefix)
    some = [AllowedTokens(torch.tensor([0, 2, 3, 7, 11, 12, 20]))]
    assert_alike(model, source, num_beams=num_beams, logits_processor=some)
    assert_alike(model, source, num_beams=num_beams, no_repeat_ngram_size=2)
    assert len(lengths) > 5


def test_a_recording_serves_all_searches_for_which_there_is_room(lively_model, recordings):
    model = lively_model()
    for lengths in ((5, 7, 2), (4,), (16, 3, 3, 9, 1, 2, 2, 2)):
        for num_beams in (1, 3):
            assert_alike(model, sources(*lengths), num_beams=num_beams)
    assert recordings == [Room(8, 1, 16, 64), Room(8, 3, 16, 64)]
    assert_alike(model, sources(17, 4))
    assert recordings[2:] == [Room(8, 1, 32, 64)]
    assert_alike(model, sources(*[3] * 9), max_new_tokens=65, min_new_tokens=65)
    assert recordings[3:] == [Room(16, 1, 16, 64), Room(16, 1, 16, 128)]


def test_what_a_search_left_is_not_seen_by_the_next(lively_model, recordings, monkeypatch):
    model, long, short = lively_model(), sources(9, 12, 7), sources(3, 2)
    for num_beams in (1, 2):
        assert_alike(model, long, num_beams=num_beams)
    for step in KEPT[model.model.decoder].steps.values():
        for tensor in vars(step.static).values():
            if tensor.is_floating_point() and tensor is not step.static.own:
                tensor.fill_(torch.nan)  # worse than any search leaves it
    for num_beams in (1, 2):
        assert_alike(model, short, num_beams=num_beams)
    assert not differs(model, short)
    assert len(recordings) == 2
    # the control: that is what clearing is for
    monkeypatch.setattr(StaticCache, "clear", lambda self: None)
    assert differs(model, short)


def test_weights_may_change_where_they_are_and_may_move(lively_model, recordings, monkeypatch):
    model, source = lively_model(), sources(5, 9, 2)
    assert_alike(model, source)
    for change in (1.5, 0.5):
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(change)
        model.model.decoder.layers[1].self_attn.k_proj.weight.data.add_(0.3)  # of which there is no trace
        assert_alike(model, source)
    assert len(recordings) == 1

    def move():
        layer = model.model.decoder.layers[1].fc1
        layer.weight = torch.nn.Parameter(layer.weight.detach() * 2 + 0.5)

    move()
    assert_alike(model, source)
    assert len(recordings) == 2
    model.float()
    assert model.generate(**source, compile_config=CompileConfig()).tolist() == model.generate(**source).tolist()
    assert len(recordings) == 3
    model.double()
    assert not differs(model, source)
    # the control: a recording that is kept reads the old place
    monkeypatch.setattr(graphs_vaswani, "places_of", lambda decoder: KEPT[decoder].weights)
    move()
    assert differs(model, source)


@torch.no_grad()
def test_two_searches_at_a_time_do_not_meet(lively_model, recordings):
    model, source, other = lively_model(), sources(5, 7, 2), sources(8, 3, 9)
    expected, found = (
        [state_of(model, each, 2, fused) for each in (source, other)] for fused in (AS_WRITTEN, ON_TAPE)
    )
    for _ in range(4):
        for one, same in zip(expected, found, strict=True):
            tokens = torch.randint(1, PAD, (3, 2, 1))
            torch.testing.assert_close(same.step(tokens, None), one.step(tokens, None), **CLOSE)
    assert len(recordings) == 2
    assert len(KEPT[model.model.decoder].steps) == 1


def test_steps_are_freed_with_the_model_and_are_no_part_of_it(lively_model):
    model, source = lively_model(), sources(5, 7)
    weights = len(model.state_dict())
    assert_alike(model, source, num_beams=2)
    (step,) = KEPT[model.model.decoder].steps.values()
    assert step.user() is None  # the search is over, and its state is gone
    twin = copy.deepcopy(model)
    assert twin.model.decoder not in KEPT
    assert_alike(twin, source, num_beams=2)
    assert len(model.state_dict()) == weights
    static = ref(step.static)
    del step, model
    gc.collect()
    assert static() is None


def test_few_steps_are_kept(lively_model, recordings, monkeypatch):
    model = lively_model()
    monkeypatch.setattr(graphs_vaswani, "MOST_STEPS", 2)
    for length in (3, 20, 40, 3):
        assert_alike(model, sources(length))
    kept = KEPT[model.model.decoder]
    assert [room.source for room in kept.steps] == [48, 16]
    assert [room.source for room in recordings] == [16, 32, 48, 16]
    assert_alike(model, sources(40))  # is used again, and so is the last to go
    assert [room.source for room in kept.steps] == [16, 48]
    assert len(recordings) == 4
    assert kept.num_bytes == sum(step.static.num_bytes for step in kept.steps.values())
    monkeypatch.setattr(graphs_vaswani, "MOST_BYTES", kept.num_bytes - 1)
    assert_alike(model, sources(40))
    assert [room.source for room in kept.steps] == [48]


def test_a_recording_may_be_made_under_inference_mode_and_used_without(lively_model, recordings):
    model, source = lively_model(), sources(5, 7)
    with torch.inference_mode():
        assert_alike(model, source, num_beams=2)
    assert_alike(model, source, num_beams=2)
    with torch.inference_mode():
        assert_alike(model, source, num_beams=2)
    assert len(recordings) == 1


def test_what_cannot_be_recorded_is_computed_and_said(lively_model, monkeypatch, caplog):
    def missing(device):
        raise RuntimeError("no capture here\nand much more")

    monkeypatch.setattr(graphs_vaswani, "stream_for_recording", missing)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(
        VaswaniForConditionalGeneration, "fused", lambda self, config: RECORDED if config else AS_WRITTEN
    )
    monkeypatch.setattr(graphs_vaswani.logger, "propagate", True)
    model = lively_model()
    for num_beams in (1, 2):
        assert_alike(model, sources(5, 7), num_beams=num_beams)
    assert not KEPT[model.model.decoder].steps  # it would keep the model alive
    said = [each.getMessage() for each in caplog.records if "recorded" in each.getMessage()]
    assert said == ["steps of decoding cannot be recorded here, so that they are slow: no capture here"]


def test_a_table_of_positions_still_has_an_end(random_model):
    model, how = random_model(**VARIANTS[2]), {"max_new_tokens": 60, "min_new_tokens": 60}
    for config in (None, CompileConfig()):
        with pytest.raises(ValueError, match="a sequence of 41 tokens is longer than max_position_embeddings=40"):
            model.generate(**sources(5), **how, compile_config=config)


def test_steps_are_recorded_on_a_gpu_where_that_is_asked_for(random_model, monkeypatch):
    monkeypatch.undo()  # the tape
    model = random_model()
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert model.fused(None) is AS_WRITTEN
    assert model.fused(CompileConfig()) is RECORDED
    assert model.fused(CompileConfig(mode="default")) is None
    model.model.decoder.layers[0].fc1.register_forward_hook(lambda *given: None)
    assert model.fused(CompileConfig()) is None
    monkeypatch.setattr(type(model), "device", torch.device("mps"))
    assert random_model().fused(CompileConfig()) is None


def test_restricted_attention_is_not_recorded(random_model):
    assert type(state_of(random_model(attention_restriction=3), sources(5), 2, ON_TAPE)) is IncrementalState


def test_without_memory_for_a_recording_none_is_made(random_model, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("too large")

    monkeypatch.setattr(graphs_vaswani, "StaticCache", fail)
    assert type(state_of(random_model(), sources(5), 2, ON_TAPE)) is IncrementalState


def test_sizes_leave_at_most_half_as_much_empty_as_is_used():
    assert sorted({rounded(count, 8) for count in range(1, 200)}) == [8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert all(count <= rounded(count, 8) <= max(8, 2 * count) for count in range(1, 1000))
    assert rounded(1, 64) == rounded(64, 64) == 64
    assert [rounded(count, 1) for count in range(1, 10)] == [1, 2, 3, 4, 6, 6, 8, 8, 12]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_gpu_it_finds_the_same(dtype, num_beams, random_model, monkeypatch):
    monkeypatch.undo()  # the tape
    config = VaswaniConfig(vocab_size=500, d_model=64, encoder_layers=2, decoder_layers=3, dropout=0.0)
    model, replayed = random_model(config).cuda().to(dtype), []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0, 0.2)
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: replayed.append(graph) or replay(graph))
    lengths = set()
    for sentences in (40, 3, 40, 17, 1):
        mask = torch.arange(30) < torch.randint(1, 31, (sentences, 1))
        ids = torch.randint(1, 499, mask.shape).masked_fill(~mask, 499)
        how = {"input_ids": ids.cuda(), "attention_mask": mask.long().cuda(), "num_beams": num_beams}
        expected, found = model.generate(**how), model.generate(**how, compile_config=CompileConfig())
        assert found.tolist() == expected.tolist()
        lengths |= set((found != 499).sum(1).tolist())
        with torch.no_grad():
            model.model.decoder.layers[1].fc2.weight.mul_(1.1)
    assert len(set(replayed)) > 2
    assert len(replayed) > 2 * len(set(replayed))
    assert len(lengths) > 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.no_grad()
def test_on_a_gpu_in_bfloat16_logits_are_close(random_model, monkeypatch):
    monkeypatch.undo()  # the tape
    model = random_model(vocab_size=500, d_model=64).cuda().bfloat16()
    source = {name: tensor.cuda() for name, tensor in sources(5, 9, 2, 30).items()}
    expected, found = (state_of(model, source, 4, fused) for fused in (AS_WRITTEN, RECORDED))
    parents = None
    for _ in range(70):  # beyond the first room
        tokens = torch.randint(1, 499, (4, 4, 1)).cuda()
        torch.testing.assert_close(found.step(tokens, parents), expected.step(tokens, parents), rtol=0.05, atol=0.1)
        parents = torch.randint(0, 4, (4, 4)).cuda()
    assert found.recorded.is_recorded
    assert model.generate(**source, num_beams=4, compile_config=CompileConfig()).shape[0] == 4
