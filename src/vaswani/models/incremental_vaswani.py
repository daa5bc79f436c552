"""Incremental decoding: one target position at a time, fast.

`IncrementalState` gives the logits of the model from the model's modules, and neither copies nor repeats what it
caches. It may take the model's place only where `is_as_written` finds nothing changed.

Axis letters: see `modeling_vaswani.py`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.modules import module as torch_module
from transformers.generation import GenerationMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_vaswani import attend
from .encoding_vaswani import attention_dtype, source_keys_and_values
from .fusion_vaswani import AS_WRITTEN, Entering, Fused, Leaving, multiply
from .packing_vaswani import Projection, projection, rows_of


# A full cache grows by a quarter. All copies of a decoding then add up to at most four times the final cache, and at
# most a fifth of it is empty.
GROWTH = 0.25
# A short cache grows by 16 positions instead; with many beams by fewer, as attention also covers the slots that are
# still empty.
MIN_NEW_POSITIONS = 16
MAX_NEW_SLOTS_WHEN_SHORT = 64


class KVCache:
    """Keys and values of all decoder layers, and where each hypothesis finds its own.

    A position has K slots, side by side. When hypotheses change places, their keys and values do not: they stay in the
    slots where they were written, and a hypothesis takes over its parent's path through them.

    Where attention is restricted to r positions, paths have no more, and when the cache is full, it first drops what
    no later position will see: so it never holds more than r positions and those by which it grew.

    Parameters
    ----------
    attentions : sequence of VaswaniAttention
        The self-attention of each layer.
    states : Tensor of shape (B, S, D)
        The encoder's output, for its device.
    num_beams : int
        K.
    dtype : dtype
        Of keys, values and mask.
    splits_heads : bool
        Whether each head has rows of its own, H' = H, or they share a row, H' = 1, and lie side by side.

    Attributes
    ----------
    length : int
        Positions so far.
    dropped : int
        Of these, the first ones, which have no slots any more.
    keys, values : list of Tensor of shape (B * H', slots, H / H' * d_k) and (B * H', slots, H / H' * d_v)
        One of each a layer. Slots beyond (`length` - `dropped`) * K are empty.
    paths : Tensor of shape (B, K, T)
        The slots of the positions that each hypothesis sees, its own last.
    open_slots : Tensor of shape (K,)
        Those of the open position.
    """

    def __init__(
        self, attentions: Sequence[Any], states: torch.Tensor, num_beams: int, dtype: torch.dtype, splits_heads: bool
    ):
        self.num_beams, self.length, self.dropped = num_beams, 0, 0
        self.restriction = attentions[0].restriction
        num_heads = attentions[0].q_proj.out_features // attentions[0].head_dim
        self.num_rows, side_by_side = (num_heads, 1) if splits_heads else (1, num_heads)  # H' and H / H'
        rows, new = len(states) * self.num_rows, states.new_empty(len(states), dtype=dtype)
        self.keys = [new.new_empty(rows, 0, side_by_side * attention.head_dim) for attention in attentions]
        self.values = [new.new_empty(rows, 0, side_by_side * attention.v_head_dim) for attention in attentions]
        self.open_slots = torch.arange(-num_beams, 0, device=states.device)
        self.paths = self.open_slots.new_empty(len(states), num_beams, 0)

    def advance(self, parents: torch.Tensor | None) -> None:
        """Open the next position: each hypothesis sees there itself, and before it what its parent (B, K) saw."""
        if (self.length - self.dropped) * self.num_beams == self.keys[0].shape[1]:
            self._drop_unseen()
            self._grow()
        self.length += 1
        self.open_slots = self.open_slots + self.num_beams
        if parents is not None and self.num_beams > 1:
            self.paths = self.paths.gather(1, parents[..., None].expand_as(self.paths))
        unseen = 0 if self.restriction is None else max(0, self.paths.shape[2] + 1 - self.restriction)
        own = self.open_slots.expand(len(self.paths), -1)[..., None]
        self.paths = torch.cat([self.paths[..., unseen:], own], dim=2)

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the (B * H', K, d_k) keys and (B * H', K, d_v) values of the open position; return those of all slots.

        Attention covers empty slots too, masked: a slice without them would be copied by `bmm`.
        """
        stop = (self.length - self.dropped) * self.num_beams
        self.keys[layer][:, stop - self.num_beams : stop] = keys
        self.values[layer][:, stop - self.num_beams : stop] = values
        return self.keys[layer], self.values[layer]

    def mask(self) -> torch.Tensor:
        """Return (B, K, slots), to be added to attention scores: 0 on a hypothesis' path, -inf elsewhere."""
        new = self.keys[0].new_full((*self.paths.shape[:2], self.keys[0].shape[1]), -math.inf)
        return new.scatter_(2, self.paths, 0)

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the (B',) sentences."""
        self.keys = [select_sentences(keys, sentences, self.num_rows) for keys in self.keys]
        self.values = [select_sentences(values, sentences, self.num_rows) for values in self.values]
        self.paths = self.paths[sentences]

    def _drop_unseen(self) -> None:
        """Drop the positions that the next one, to be opened, will not see."""
        if self.restriction is None or self.length - self.dropped < self.restriction:
            return
        slots = (self.length - self.restriction + 1 - self.dropped) * self.num_beams
        self.keys = [keys[:, slots:] for keys in self.keys]
        self.values = [values[:, slots:] for values in self.values]
        self.paths, self.open_slots = self.paths[..., 1:] - slots, self.open_slots - slots
        self.dropped = self.length - self.restriction + 1

    def _grow(self) -> None:
        shortest = min(MIN_NEW_POSITIONS, max(1, MAX_NEW_SLOTS_WHEN_SHORT // self.num_beams))
        slots = max(shortest, int(GROWTH * (self.length - self.dropped))) * self.num_beams
        self.keys = [pad(keys, (0, 0, 0, slots)) for keys in self.keys]
        self.values = [pad(values, (0, 0, 0, slots)) for values in self.values]


class IncrementalLayer:
    """One decoder layer, which computes one position of all hypotheses at a time.

    Keys and values of the source are computed once per sentence: the K hypotheses of a sentence are K queries to them.

    Parameters
    ----------
    layer : VaswaniDecoderLayer
    index : int
        Its place in the stack.
    source : tuple of Tensor
        Its part of `source_keys_and_values`.
    num_beams : int
        K.
    fused : Fused
        What is between the products.
    project : callable, default=projection
        What makes one function of linear layers.
    """

    def __init__(
        self,
        layer: Any,
        index: int,
        source: tuple[torch.Tensor, torch.Tensor],
        num_beams: int,
        fused: Fused,
        project: Callable[[nn.Module, str, Sequence[Any]], Projection] = projection,
    ):
        self.layer, self.index, self.num_beams, self.fused = layer, index, num_beams, fused
        self_attn, cross_attn = layer.self_attn, layer.encoder_attn
        self.num_heads = self_attn.q_proj.out_features // self_attn.head_dim
        self.self_qkv = project(self_attn, "qkv", (self_attn.q_proj, self_attn.k_proj, self_attn.v_proj))
        self.self_out = project(self_attn, "out", [self_attn.out_proj])
        self.cross_q = project(cross_attn, "q", [cross_attn.q_proj])
        self.cross_out = project(cross_attn, "out", [cross_attn.out_proj])
        self.fc1 = project(layer, "fc1", [layer.fc1])
        self.fc2 = project(layer, "fc2", [layer.fc2])
        self.source_keys, self.source_values = source

    def __call__(
        self,
        states: torch.Tensor,
        entering: Entering,
        cache: Any,
        target_mask: torch.Tensor | None,
        source_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Entering]:
        """Turn the (R, D) states of the open position, and what enters of them, into those of the next layer.

        The cache is a `KVCache` or, where nothing is compiled, what has its keys, values and `append`. Masks are as
        attention takes them: (B * H, K, N), or compiled for single queries (B, 1, N). Compiled self-attention of
        several needs none.
        """
        layer = self.layer
        entering = self._self_attention(entering, cache, target_mask)
        states, entering = self._add_and_norm(self.self_out, entering, states, layer.self_attn_layer_norm)
        entering = self._cross_attention(entering, source_mask)
        states, entering = self._add_and_norm(self.cross_out, entering, states, layer.encoder_attn_layer_norm)
        entering = self.fused.activate(*multiply(self.fc1, entering), layer.activation)
        return self._add_and_norm(self.fc2, entering, states, layer.final_layer_norm)

    def _self_attention(self, entering: Entering, cache: KVCache, mask: torch.Tensor | None) -> Entering:
        attention, leaving = self.layer.self_attn, multiply(self.self_qkv, entering)
        keys, values = cache.keys[self.index], cache.values[self.index]
        if self.fused.self_attend_alone is not None:
            keys, values = self._with_heads(keys), self._with_heads(values)
            return self.fused.self_attend_alone(*leaving, cache.open_slots, keys, values, mask, attention.scaling)
        if self.fused.self_attend is not None:
            return self.fused.self_attend(
                *leaving, cache.open_slots, keys, values, cache.paths, self.num_heads, attention.scaling
            )
        widths = (attention.head_dim, attention.head_dim, attention.v_head_dim)
        query, key, value = self._fold(leaving, widths, self.source_keys.dtype)
        keys, values = cache.append(self.index, key, value)
        return self._attend(query, keys.mT, values, mask, attention.scaling, leaving)

    def _cross_attention(self, entering: Entering, mask: torch.Tensor | None) -> Entering:
        attention, leaving = self.layer.encoder_attn, multiply(self.cross_q, entering)
        if self.fused.attend_alone is not None:
            keys, values = self._with_heads(self.source_keys), self._with_heads(self.source_values)
            return self.fused.attend_alone(*leaving, keys, values, mask, attention.scaling)
        widths = (attention.head_dim,)
        (query,) = self._fold(leaving, widths, self.source_keys.dtype)
        return self._attend(query, self.source_keys, self.source_values, mask, attention.scaling, leaving)

    def _fold(self, leaving: Leaving, widths: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        product, scales, bias = leaving
        product = product.unflatten(0, (-1, self.num_beams))  # (B, K, W)
        scales = None if scales is None else scales.unflatten(0, (-1, self.num_beams))
        return self.fused.fold(product, scales, bias, self.num_heads, widths, dtype)

    def _attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float,
        leaving: Leaving,
    ) -> Entering:
        attended = attend(query, keys, values, mask, scaling, self.num_heads)
        return self.fused.enter(attended, leaving.product.dtype, leaving.scales is not None)

    def _add_and_norm(
        self, sublayer: Projection, entering: Entering, states: torch.Tensor, norm: nn.LayerNorm
    ) -> tuple[torch.Tensor, Entering]:
        leaving = multiply(sublayer, entering)
        states, *entering = self.fused.add_and_norm(*leaving, states, norm.weight, norm.bias, norm.eps)
        return states, entering

    def _with_heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(0, (-1, self.num_heads))  # (B * H, ...) -> (B, H, ...)

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the (B',) sentences."""
        self.source_keys = select_sentences(self.source_keys, sentences, self.num_heads)
        self.source_values = select_sentences(self.source_values, sentences, self.num_heads)


class StepwiseState:
    """What a `DecoderState` does around `_decode`, which appends one position: it projects to the vocabulary.

    Parameters
    ----------
    model : VaswaniForConditionalGeneration
    device : device
        Where it computes.
    """

    def __init__(self, model: Any, device: torch.device):
        self.decoder, self.lm_head, self.device = model.model.decoder, model.lm_head, device
        self.project_to_vocabulary = projection(self.lm_head, "weight", [self.lm_head])
        if self.project_to_vocabulary.multiply is self.lm_head and self.lm_head.bias is None:
            self.project_to_vocabulary = Projection(ReusedLogits(self.lm_head))

    def step(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        """Append (B, K, T) tokens to the hypotheses of (B, K) `parents`; return the (R, V) logits of the next one."""
        parents = None if parents is None else parents.to(self.device)
        for column in tokens.to(self.device).unbind(-1):
            entering = self._decode(column, parents)
            parents = None
        product, scales, bias = multiply(self.project_to_vocabulary, entering)
        if scales is not None:
            product = product.mul_(scales) if bias is None else torch.addcmul(bias, product, scales, out=product)
        return product.to(tokens.device)

    def cut_output(self, ids: torch.Tensor) -> None:
        """Compute from now on the logits of the tokens with these (N,) ids alone."""
        cut = rows_of(self.lm_head, ids.to(self.device))
        self.project_to_vocabulary = projection(cut, "weight", [cut])

    def _decode(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> Entering:
        """Append (B, K) tokens; return what of the decoder's (R, D) output enters the projection to the vocabulary."""
        raise NotImplementedError


class IncrementalState(StepwiseState):
    """The `DecoderState` that gives the logits of the model, but computes only the new position.

    Parameters
    ----------
    model : VaswaniForConditionalGeneration
    states : Tensor of shape (B, S, D)
        The encoder's output.
    source_mask : Tensor of shape (B, S), or None
        1 for each real token.
    num_beams : int
        K.
    fused : Fused
        What is between the products: as written, or compiled.
    """

    def __init__(
        self,
        model: Any,
        states: torch.Tensor,
        source_mask: torch.Tensor | None,
        num_beams: int,
        fused: Fused = AS_WRITTEN,
    ):
        if num_beams > 1:  # products of matrices are fast for several queries
            fused = replace(fused, attend_alone=None, self_attend_alone=None)
        else:
            fused = replace(fused, self_attend=None)
        super().__init__(model, states.device)
        self.fused, layers = fused, self.decoder.layers
        dtype = attention_dtype(model, in_one_pass=fused.attend_alone is not None)
        source = source_keys_and_values(self.decoder, states, source_mask, dtype, fused)
        attentions = [layer.self_attn for layer in layers]
        self.cache = KVCache(attentions, states, num_beams, dtype, splits_heads=fused.self_attend is None)
        self.layers = [
            IncrementalLayer(layer, index, part, num_beams, fused)
            for index, (layer, part) in enumerate(zip(layers, source, strict=True))
        ]
        self.rows_of_mask = 1 if fused.attend_alone is not None else self.layers[0].num_heads
        self.source_mask: torch.Tensor | None = None  # (B * H, K, S), added to scores; (B, 1, S) for single queries
        if fused.attend_alone is not None and source_mask is None:
            source_mask = states.new_ones(states.shape[:2])
        if source_mask is not None and (fused.attend_alone is not None or not source_mask.all()):
            mask = torch.zeros_like(source_mask, dtype=dtype).masked_fill(source_mask == 0, torch.finfo(dtype).min)
            self.source_mask = mask[:, None].repeat(1, num_beams, 1).repeat_interleave(self.rows_of_mask, dim=0)

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the (B',) sentences."""
        self.cache.select(sentences)
        for layer in self.layers:
            layer.select(sentences)
        if self.source_mask is not None:
            self.source_mask = select_sentences(self.source_mask, sentences, self.rows_of_mask)

    def _decode(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> Entering:
        """Append (B, K) tokens; return what of the decoder's (R, D) output enters the projection to the vocabulary."""
        past_length = self.cache.length
        self.cache.advance(parents)
        mask = self._target_mask()
        states = self.decoder.embed(tokens.flatten()[:, None], None)
        states = self.decoder.add_positions(states, past_length)[:, 0]  # (R, D)
        entering = self.fused.enter(states, states.dtype, self.project_to_vocabulary.is_int8)
        for layer in self.layers:
            states, entering = layer(states, entering, self.cache, mask, self.source_mask)
        return entering

    def _target_mask(self) -> torch.Tensor | None:
        if self.fused.self_attend is not None:
            return None
        mask, is_alone = self.cache.mask(), self.fused.self_attend_alone is not None
        return mask if is_alone else mask.repeat_interleave(self.cache.num_rows, dim=0)


class ReusedLogits:
    """The projection to the vocabulary, into the same memory at every step.

    Logits are by far the largest tensor: memory for new ones would cost as much time as a layer. This is no method of
    `StepwiseState`, which would then refer to itself, and hold its caches until Python looks for such circles.

    Parameters
    ----------
    lm_head : nn.Linear
        Without a bias; its weight is (V, D).
    """

    def __init__(self, lm_head: nn.Linear):
        self.lm_head, self.logits = lm_head, lm_head.weight.new_empty(0)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """Return the (R, V) logits of (R, D) states, valid until the next call."""
        self.logits.resize_(len(states), self.lm_head.out_features)
        return torch.mm(states, self.lm_head.weight.T, out=self.logits)


def select_sentences(states: torch.Tensor, sentences: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Pick the (B',) sentences from (B * H, ...) states."""
    return states.unflatten(0, (-1, num_heads))[sentences].flatten(0, 1)


# The methods whose work `IncrementalState` does, as they were written: of torch's modules, of ours, and of `generate`.
# If somebody replaces one, in an object, a class or a subclass, the replacement has to be called.
OF_MODULES = ("forward", "self_attention_mask", "_keys_and_values", "_split_heads", "_feed_forward", "_add_and_norm")


def methods_of(kind: type) -> tuple[Any, ...]:
    """Return those methods of a kind of module whose work `IncrementalState` does, None for each that it lacks."""
    return tuple(getattr(kind, name, None) for name in OF_MODULES)


AS_THEY_WERE: dict[type, tuple[Any, ...]] = {
    kind: methods_of(kind) for kind in (nn.Linear, nn.LayerNorm, nn.Embedding, nn.ModuleList)
}
METHODS = {
    name: getattr(GenerationMixin, name)
    for name in ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
}


def register_modules(*kinds: type[nn.Module]) -> None:
    """Remember the methods of these modules, whose work `IncrementalState` does."""
    AS_THEY_WERE.update({kind: methods_of(kind) for kind in kinds})


def is_as_written(model: Any, stack: nn.Module) -> bool:
    """Tell whether all that a model and one of its stacks compute is as it was written, and no hook looks at it."""
    if not is_untouched(model) or torch_module._has_any_global_hook():
        return False
    if all(type(model).forward is not forward for forward, *_ in AS_THEY_WERE.values()):
        return False
    for name, method in METHODS.items():
        # PEFT leaves an attribute of the object behind that is still its own method: that changes nothing.
        if getattr(getattr(model, name), "__func__", None) is not method or getattr(model, name).__self__ is not model:
            return False
    if hasattr(model, "_reorder_cache") or not has_known_attention(model.config):
        return False
    modules = (model.model, model.lm_head, *stack.modules())
    are_plain = all(
        methods_of(type(module)) == AS_THEY_WERE.get(type(module)) and is_untouched(module) for module in modules
    )
    return are_plain and not torch.is_autocast_enabled(model.device.type)


def has_known_attention(config: Any) -> bool:
    """Tell whether transformers or we compute attention, rather than a function that a user registered."""
    name = config._attn_implementation
    function = ALL_ATTENTION_FUNCTIONS.get(name) if name in ALL_ATTENTION_FUNCTIONS else None
    return name == "eager" if function is None else function.__module__.startswith("transformers.")


def is_untouched(module: nn.Module) -> bool:
    """Tell whether a module has its class's methods, plain weights that are loaded, no hooks, and drops nothing."""
    if module.training and next(module.children(), None) is not None:  # those without parts have no dropout
        return False
    if module._compiled_call_impl is not None or not vars(module).keys().isdisjoint(OF_MODULES):
        return False
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    # Once attentions were asked for, transformers leaves its own hooks in place.
    if any(getattr(hook, "__module__", None) != "transformers.utils.output_capturing" for hook in hooks):
        return False
    weights = (weight for weight in module._parameters.values() if weight is not None)
    return all(type(weight) is nn.Parameter and not weight.is_meta for weight in weights)


__all__ = [
    "IncrementalLayer",
    "IncrementalState",
    "KVCache",
    "StepwiseState",
    "is_as_written",
    "register_modules",
]
