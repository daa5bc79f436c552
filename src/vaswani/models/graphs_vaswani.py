"""Steps of decoding that are recorded once, as CUDA graphs, and from then on replayed.

A step is some 150 small operations, and Python takes far longer to start them than a GPU takes to do them. A recording
starts all of them at once, but always with the same shapes, on the same memory. So each is made for a `Room`, has
tensors of its own, and serves all searches that fit in, one at a time. What a search leaves empty is masked.

Axis letters: see `modeling_vaswani.py`. Here B, S and T say for how many sentences and positions there is room, and N
is their number of slots, T * K, as in `KVCache`.
"""

import math
from collections.abc import Callable, Hashable
from functools import cache
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from transformers.utils import logging

from .encoding_vaswani import source_keys_and_values
from .fusion_vaswani import AS_WRITTEN, Entering, Fused
from .incremental_vaswani import IncrementalLayer, StepwiseState
from .packing_vaswani import one_by_one


logger = logging.get_logger(__name__)

# The smallest rooms, which most searches never leave: to record a step takes as long as several that are not recorded.
LEAST_SENTENCES, LEAST_SOURCE, LEAST_TARGET = 8, 16, 64
# Sentences that are left move to a smaller room if that has at most this share of the places.
MAX_SHARE_TO_MOVE = 0.25
# What stays with a model from one call to the next: so many steps, and of their tensors so many bytes.
MOST_STEPS, MOST_BYTES = 16, 2 << 30
# CUDA records for one thread at a time.
LOCK = Lock()


def record(function: Callable[[], None], device: torch.device) -> Callable[[], None] | None:
    """Record what a function does on a GPU, and return what does it again; None, with a warning, where that fails.

    The function is called twice before, as cuBLAS and others prepare themselves in their first call.
    """
    try:
        graph, stream = torch.cuda.CUDAGraph(), stream_for_recording(device)
        with torch.cuda.device(device):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                function()
                function()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                function()
    except RuntimeError as error:
        problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        logger.warning_once(f"steps of decoding cannot be recorded here, so that they are slow: {problem}")
        return None
    return graph.replay


@cache
def stream_for_recording(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all recordings: for each further one, cuBLAS would keep memory."""
    return torch.cuda.Stream(device)


RECORDED = Fused(record=record)


class Room(NamedTuple):
    """Which searches a recorded step serves: all with as many beams, and at most as much of the rest."""

    sentences: int
    num_beams: int
    source: int
    target: int


def rounded(count: int, least: int) -> int:
    """Return the first size that is at least `count`: of 8, 16, 24, 32, 48, 64, 96, 128, ... where 8 is the least."""
    step = max(least, 1 << max(0, (count - 1).bit_length() - 2))
    return -(-count // step) * step


class StaticCache:
    """All that a recorded step reads and writes, besides weights: what a `KVCache` has, in place, and the source.

    Attributes
    ----------
    tokens, parents : Tensor of shape (B, K)
        What the step appends, to which hypotheses.
    states : Tensor of shape (B, K, D)
        The decoder's output.
    length : Tensor of shape (1,)
        Positions so far.
    open_slots : Tensor of shape (K,)
        Those of the next position.
    keys, values : Tensor of shape (L, B, H, N, d_k) and (L, B, H, N, d_v)
        Of L layers.
    mask : Tensor of shape (B, K, N)
        Added to scores: 0 on a hypothesis' path, -inf elsewhere.
    source_keys, source_values, source_mask : Tensor of shape (L, B, H, d_k, S), (L, B, H, S, d_v) and (B, H, K, S)
    """

    def __init__(self, decoder: Any, room: Room):
        sentences, num_beams, source, target = room
        attention, weight = decoder.layers[0].self_attn, decoder.embed_tokens.weight
        num_heads, slots = attention.q_proj.out_features // attention.head_dim, target * num_beams
        rows, beams = (len(decoder.layers), sentences, num_heads), torch.arange(num_beams, device=weight.device)
        self.beams, self.open_slots, self.length = beams, beams.clone(), beams.new_zeros(1)
        self.tokens, self.parents = beams.new_zeros(sentences, num_beams), beams.repeat(sentences, 1)
        self.states = weight.new_zeros(sentences, num_beams, weight.shape[1])
        self.keys = weight.new_zeros(*rows, slots, attention.head_dim)
        self.values = weight.new_zeros(*rows, slots, attention.v_head_dim)
        self.mask = weight.new_full((sentences, num_beams, slots), -math.inf)
        self.own = weight.new_full((num_beams, num_beams), -math.inf).fill_diagonal_(0)
        self.source_keys = weight.new_zeros(*rows, attention.head_dim, source)
        self.source_values = weight.new_zeros(*rows, source, attention.v_head_dim)
        self.source_mask = weight.new_zeros(sentences, num_heads, num_beams, source)

    @property
    def num_bytes(self) -> int:
        """What it takes of memory."""
        return sum(tensor.nbytes for tensor in vars(self).values())

    def clear(self) -> None:
        """Forget all, as even what is masked has to be numbers."""
        for tensor in (self.tokens, self.length, self.keys, self.values):
            tensor.zero_()
        for tensor in (self.source_keys, self.source_values, self.source_mask):
            tensor.zero_()
        self.mask.fill_(-math.inf)
        self.parents.copy_(self.beams)
        self.open_slots.copy_(self.beams)

    def begin(self, source: list[tuple[torch.Tensor, torch.Tensor]], mask: torch.Tensor | None) -> None:
        """Start a search: with what `source_keys_and_values` gave, and the (B', S') mask, 1 for each real token."""
        self.clear()
        num_heads = self.keys.shape[2]
        sentences, length = len(source[0][0]) // num_heads, source[0][0].shape[2]
        for layer, (keys, values) in enumerate(source):
            self.source_keys[layer, :sentences, ..., :length] = keys.unflatten(0, (-1, num_heads))
            self.source_values[layer, :sentences, :, :length] = values.unflatten(0, (-1, num_heads))
        legal = self.source_mask[:sentences]
        legal[..., length:] = -math.inf
        if mask is not None:
            legal[..., :length].masked_fill_(mask[:, None, None] == 0, torch.finfo(legal.dtype).min)

    def take_over(self, other: "StaticCache", sentences: torch.Tensor) -> None:
        """Go on where another one is, which has room for as much of the source, with these (B',) sentences of it."""
        self.clear()
        count, slots = len(sentences), other.mask.shape[2]
        self.keys[:, :count, :, :slots] = other.keys[:, sentences]
        self.values[:, :count, :, :slots] = other.values[:, sentences]
        self.mask[:count, :, :slots] = other.mask[sentences]
        self.source_keys[:, :count] = other.source_keys[:, sentences]
        self.source_values[:, :count] = other.source_values[:, sentences]
        self.source_mask[:count] = other.source_mask[sentences]
        self.length.copy_(other.length)
        self.open_slots.copy_(other.open_slots)

    def open_position(self) -> None:
        """Let each hypothesis see itself in the next position, and before it what its parent saw."""
        if len(self.beams) > 1:
            self.mask.copy_(self.mask.gather(1, self.parents[..., None].expand_as(self.mask)))
        self.mask.index_copy_(2, self.open_slots, self.own.expand(len(self.mask), -1, -1))

    def close_position(self) -> None:
        """Go on to the next one."""
        self.length.add_(1)
        self.open_slots.add_(len(self.beams))

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the (B * H, K, d_k) keys and (B * H, K, d_v) values of the open position; return all."""
        all_keys, all_values = self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)
        return all_keys.index_copy_(1, self.open_slots, keys), all_values.index_copy_(1, self.open_slots, values)


def decoding_step(decoder: Any, static: StaticCache) -> Callable[[], None]:
    """Return the function that appends the cache's tokens to its hypotheses, and leaves there the decoder's output.

    It reads the decoder's own weights, so that it knows of all that is written to them.
    """
    sources = zip(static.source_keys.flatten(1, 2), static.source_values.flatten(1, 2), strict=True)
    layers = [
        IncrementalLayer(layer, index, source, len(static.beams), AS_WRITTEN, lambda *given: one_by_one(given[2]))
        for index, (layer, source) in enumerate(zip(decoder.layers, sources, strict=True))
    ]
    source_mask, num_heads = static.source_mask.flatten(0, 1), static.keys.shape[2]

    def decode() -> None:
        static.open_position()
        mask = static.mask[:, None].expand(-1, num_heads, -1, -1).flatten(0, 1)  # (B * H, K, N)
        states = decoder.embed(static.tokens.flatten()[:, None], None)[:, 0]  # (R, D)
        states = states + decoder.embed_positions(static.length).to(states.dtype)
        entering: Entering = (states, None)
        for layer in layers:
            states, entering = layer(states, entering, static, mask, source_mask)
        static.states.copy_(states.view_as(static.states))
        static.close_position()

    return decode


class RecordedStep:
    """A step of a decoder, for searches for which there is room.

    It knows nothing of the decoder except where the weights lie, or else it would keep it alive.

    Parameters
    ----------
    decoder : VaswaniDecoder
    room : Room
    record : callable
        `record`, or what does the same.
    """

    def __init__(self, decoder: Any, room: Room, record: Callable):
        # Somebody may call under inference_mode(), and again without, where what was made under it cannot be written.
        with torch.inference_mode(False), torch.no_grad():
            self.room, self.static = room, StaticCache(decoder, room)
            function = decoding_step(decoder, self.static)
            replay = record(function, self.static.keys.device)
        self.is_recorded, self.replay = replay is not None, replay or function
        self.user: Callable[[], Any] = lambda: None  # the search that uses it, while there is one


class RecordedSteps:
    """The recorded steps of a decoder, the least recently used first.

    Parameters
    ----------
    weights : hashable
        What `places_of` gave when they were made.
    """

    def __init__(self, weights: Hashable):
        self.weights, self.steps = weights, dict[Room, RecordedStep]()

    def take(self, decoder: Any, room: Room, record: Callable, user: Any) -> RecordedStep:
        """Return one that nobody uses, and reserve it for as long as the user is there."""
        with LOCK:
            step = self.steps.pop(room, None)
            if step is None or step.user() is not None:
                step = RecordedStep(decoder, room, record)
            step.user = ref(user)
            if step.is_recorded:
                self.steps[room] = step
            while len(self.steps) > 1 and (len(self.steps) > MOST_STEPS or self.num_bytes > MOST_BYTES):
                del self.steps[next(iter(self.steps))]
        return step

    @property
    def num_bytes(self) -> int:
        """What their tensors take of memory."""
        return sum(step.static.num_bytes for step in self.steps.values())


# Beside the modules, not in them: copies, pickles and state dicts of a model know nothing of it.
KEPT: WeakKeyDictionary[nn.Module, RecordedSteps] = WeakKeyDictionary()


def places_of(decoder: Any) -> Hashable:
    """Return what differs as soon as a weight lies elsewhere or is of another kind, or what else steps take over."""
    weights = ((weight.data_ptr(), weight.dtype, weight.shape, weight.stride()) for weight in decoder.parameters())
    return decoder.config.pad_token_id, *weights


def steps_of(decoder: Any) -> RecordedSteps:
    """Return the decoder's recorded steps, none if its weights lie elsewhere than they did."""
    weights, kept = places_of(decoder), KEPT.get(decoder)
    if kept is None or kept.weights != weights:
        KEPT[decoder] = kept = RecordedSteps(weights)
    return kept


class RecordedState(StepwiseState):
    """The `DecoderState` that does what `IncrementalState` does, by recorded steps.

    Sentences that were dropped are computed all the same, until the others fit into a much smaller room.

    Parameters
    ----------
    model : VaswaniForConditionalGeneration
        Whose attention is not restricted.
    states : Tensor of shape (B', S', D)
        The encoder's output.
    source_mask : Tensor of shape (B', S'), or None
        1 for each real token.
    num_beams : int
        K.
    record : callable
        `record`, or what does the same.
    """

    def __init__(
        self, model: Any, states: torch.Tensor, source_mask: torch.Tensor | None, num_beams: int, record: Callable
    ):
        super().__init__(model, states.device)
        self.record, self.steps = record, steps_of(self.decoder)
        count, length = states.shape[:2]
        self.sentences, self.length = torch.arange(count, device=states.device), 0  # of the room; and positions so far
        room = Room(rounded(count, LEAST_SENTENCES), num_beams, rounded(length, LEAST_SOURCE), LEAST_TARGET)
        self.recorded = self.steps.take(self.decoder, room, record, self)
        self.recorded.static.begin(
            source_keys_and_values(self.decoder, states, source_mask, states.dtype), source_mask
        )

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the (B'',) sentences."""
        self.sentences = self.sentences[sentences.to(self.device)]
        room, fewer = self.recorded.room, rounded(len(sentences), LEAST_SENTENCES)
        if fewer <= MAX_SHARE_TO_MOVE * room.sentences:
            self._move(room._replace(sentences=fewer))

    def _decode(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> Entering:
        """Append (B', K) tokens; return what of the decoder's (R, D) output enters the projection."""
        self.decoder.check_length(self.length + 1)
        room = self.recorded.room
        if self.length == room.target:
            self._move(room._replace(target=rounded(self.length + 1, LEAST_TARGET)))
        static = self.recorded.static
        static.tokens.index_copy_(0, self.sentences, tokens)
        if parents is None:
            static.parents.copy_(static.beams)
        else:
            static.parents.index_copy_(0, self.sentences, parents)
        self.recorded.replay()
        self.length += 1
        return static.states.index_select(0, self.sentences).flatten(0, 1), None

    def _move(self, room: Room) -> None:
        before = self.recorded.static
        self.recorded = self.steps.take(self.decoder, room, self.record, self)
        self.recorded.static.take_over(before, self.sentences)
        self.sentences = torch.arange(len(self.sentences), device=self.device)


__all__ = ["RECORDED", "RecordedState"]
