"""One step of the decoder: logits of the next token for all hypotheses of all sentences.

`FusedSteps` computes them from the model's modules, without copying or repeating what is cached; `ModelSteps` asks the
model itself. A search may use either.

Axis letters: B sentences, K hypotheses of a sentence (beams), R = B * K rows, T target positions so far, S source
positions, H heads, D model width, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from transformers import DynamicCache, EncoderDecoderCache


class FusedSteps:
    """Logits of the next token, equal to the model's, for K hypotheses of each of B sentences.

    What depends on the source alone is computed once per sentence: the hypotheses of a sentence are so many queries to
    the same keys and values. Nor do their own keys and values move when hypotheses change places: each slot's stay
    where they were written, and a mask says through which slots each hypothesis has come.

    Parameters
    ----------
    model : VaswaniForConditionalGeneration
    states : Tensor of shape (B, S, D)
        The encoder's output.
    source_mask : Tensor of shape (B, S), or None
        1 for each real token.
    num_beams : int
        K.
    """

    def __init__(self, model: Any, states: torch.Tensor, source_mask: torch.Tensor | None, num_beams: int):
        self.decoder, self.lm_head = model.model.decoder, model.lm_head
        self.num_beams, self.length = num_beams, 0
        # Positions by which caches grow; all of them are attended to, as a part would be copied to be multiplied.
        self.room = min(16, max(1, 64 // num_beams))
        self.heads = model.config.decoder_attention_heads
        rows = len(states) * num_beams
        self.layers = [LayerProjections(layer, rows) for layer in self.decoder.layers]
        is_packed = can_be_packed(self.lm_head.weight, rows)
        self.to_types = projection(self.lm_head.weight, None, rows) if is_packed else self._multiply_in_place
        attentions = [layer.encoder_attn for layer in self.decoder.layers]
        self.source_keys = [split_heads(attn.k_proj(states), attn.head_dim) for attn in attentions]
        self.source_values = [split_heads(attn.v_proj(states), attn.v_head_dim) for attn in attentions]
        self.source_mask: torch.Tensor | None = None  # (B, K, S), added to scores
        if source_mask is not None and not source_mask.all():
            lowest = torch.finfo(states.dtype).min
            self.source_mask = states.new_zeros(source_mask.shape).masked_fill(source_mask == 0, lowest)
            self.source_mask = self.source_mask[:, None].repeat(1, num_beams, 1)
        self.keys: list[torch.Tensor] = []  # each (B * H, room * K, d_k), slots of a position side by side
        self.values: list[torch.Tensor] = []
        self.mask = states.new_empty(0, 0, 0)  # (B, K, room * K), added to scores
        self.logits = states.new_empty(0)

    def __call__(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        """Append (B, K) tokens, each to the hypothesis of its sentence that `parents` (B, K) names.

        `parents` is None where every hypothesis is its own successor. Returns the (R, V) logits of what comes next,
        which hold until the next call.
        """
        self._extend_mask(parents)
        target_mask, source_mask = (self._for_all_heads(mask) for mask in (self.mask, self.source_mask))
        hidden_states = self.decoder._embed(tokens.flatten()[:, None], None)
        hidden_states = self.decoder._add_positions(hidden_states, self.length)[:, 0]  # (R, D)
        for index, (layer, project) in enumerate(zip(self.decoder.layers, self.layers, strict=True)):
            attention = layer.self_attn
            query, keys, values = self._project(project.self_qkv(hidden_states), index, attention)
            output = project.self_out(self._attend(query, keys, values, target_mask, attention.scaling))
            hidden_states = layer.self_attn_layer_norm(output.add_(hidden_states))
            attention = layer.encoder_attn
            query = self._fold(project.cross_q(hidden_states), attention.head_dim)
            keys, values = self.source_keys[index], self.source_values[index]
            output = project.cross_out(self._attend(query, keys, values, source_mask, attention.scaling))
            hidden_states = layer.encoder_attn_layer_norm(output.add_(hidden_states))
            output = project.fc2(project.fc1(hidden_states).relu_())
            hidden_states = layer.final_layer_norm(output.add_(hidden_states))
        self.length += 1
        return self.to_types(hidden_states)

    def _multiply_in_place(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # The pages of logits are the most by far: got anew at every step, they would cost as much as a layer.
        self.logits.resize_(len(hidden_states), self.lm_head.out_features)
        return torch.mm(hidden_states, self.lm_head.weight.T, out=self.logits)

    def keep(self, sentences: torch.Tensor) -> None:
        """Go on with these sentences alone."""
        for name in ("keys", "values", "source_keys", "source_values"):
            kept = [tensor.unflatten(0, (-1, self.heads))[sentences].flatten(0, 1) for tensor in getattr(self, name)]
            setattr(self, name, kept)
        self.mask = self.mask[sentences]
        self.source_mask = None if self.source_mask is None else self.source_mask[sentences]

    def _extend_mask(self, parents: torch.Tensor | None) -> None:
        """Let each hypothesis see what those that it comes from saw, and itself."""
        sentences = len(self.source_keys[0]) // self.heads
        if self.length == self.mask.shape[2] // self.num_beams:
            room = self.mask.new_full((sentences, self.num_beams, self.room * self.num_beams), -math.inf)
            self.mask = torch.cat([self.mask, room], dim=-1) if self.length else room
        if parents is not None and self.num_beams > 1:
            self.mask = self.mask.gather(1, parents[..., None].expand_as(self.mask))
        slots = self.mask[..., self.length * self.num_beams :][..., : self.num_beams]
        slots.diagonal(dim1=1, dim2=2).zero_()

    def _for_all_heads(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        return None if mask is None else mask.repeat_interleave(self.heads, dim=0)

    def _project(
        self, projected: torch.Tensor, index: int, attention: nn.Module
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Take queries, keys and values apart; return the first, and of the others those of all positions so far."""
        widths = [attention.q_proj.out_features, attention.k_proj.out_features, attention.v_proj.out_features]
        query, key, value = projected.split(widths, dim=-1)
        start, end = self.length * self.num_beams, (self.length + 1) * self.num_beams
        for cache, states, width in (
            (self.keys, key, attention.head_dim),
            (self.values, value, attention.v_head_dim),
        ):
            states = self._fold(states, width)
            if self.length % self.room == 0:
                room = states.new_zeros(len(states), self.room * self.num_beams, width)
                cache[index:] = [torch.cat([cache[index], room], dim=1) if self.length else room, *cache[index + 1 :]]
            cache[index][:, start:end] = states
        return self._fold(query, attention.head_dim), self.keys[index], self.values[index]

    def _attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float,
    ) -> torch.Tensor:
        """Return softmax(Q K^T / sqrt(d_k)) V (Eq. 1) as (R, H * d_v): on a processor faster than PyTorch's own."""
        if mask is None:
            scores = torch.bmm(query, keys.mT).mul_(scaling)
        else:
            scores = torch.baddbmm(mask, query, keys.mT, alpha=scaling)
        output = torch.bmm(scores.softmax(-1), values)  # (B * H, K, d_v)
        return output.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2).flatten(0, 1)

    def _fold(self, states: torch.Tensor, width: int) -> torch.Tensor:
        states = states.view(-1, self.num_beams, self.heads, width)
        return states.transpose(1, 2).flatten(0, 1)  # (B * H, K, width)


class LayerProjections:
    """The matrix products of a decoder layer, made ready for many steps with about so many rows."""

    def __init__(self, layer: nn.Module, rows: int):
        self.self_qkv = projection(*fuse(layer.self_attn), rows)
        self.self_out = projection(layer.self_attn.out_proj.weight, layer.self_attn.out_proj.bias, rows)
        self.cross_q = projection(layer.encoder_attn.q_proj.weight, layer.encoder_attn.q_proj.bias, rows)
        self.cross_out = projection(layer.encoder_attn.out_proj.weight, layer.encoder_attn.out_proj.bias, rows)
        self.fc1 = projection(layer.fc1.weight, layer.fc1.bias, rows)
        self.fc2 = projection(layer.fc2.weight, layer.fc2.bias, rows)


def projection(weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function x -> x W^T + b.

    oneDNN, which multiplies bfloat16 on processors, lays a weight out for itself in every call; where many will come,
    it is laid out once.
    """
    if not can_be_packed(weight, rows):
        return lambda states: linear(states, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return lambda states: torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], "")


def can_be_packed(weight: torch.Tensor, rows: int) -> bool:
    """Tell whether it is possible, and pays, to lay a weight out for oneDNN."""
    if rows < 16 or weight.dtype is not torch.bfloat16 or weight.device.type != "cpu":
        return False
    names = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    return all(hasattr(torch.ops.mkldnn, name) for name in names) and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def fuse(attention: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight and bias that project to queries, keys and values at once."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    weight = torch.cat([projection.weight for projection in projections])
    if attention.q_proj.bias is None:
        return weight, None
    return weight, torch.cat([projection.bias for projection in projections])


def split_heads(states: torch.Tensor, width: int) -> torch.Tensor:
    """Turn (B, S, H * width) into (B * H, S, width)."""
    return states.unflatten(-1, (-1, width)).transpose(1, 2).flatten(0, 1)


class ModelSteps:
    """The same by the model's own forward: for adapters, quantized or sharded weights, hooks, training mode."""

    def __init__(self, model: Any, states: torch.Tensor, source_mask: torch.Tensor | None, num_beams: int):
        self.model = model
        self.states = states.repeat_interleave(num_beams, dim=0)
        self.source_mask = None if source_mask is None else source_mask.repeat_interleave(num_beams, dim=0)
        self.num_beams = num_beams
        self.cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))

    def __call__(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        """Append (B, K) tokens to the hypotheses that (B, K) `parents` name; return (R, V) logits."""
        if parents is not None:
            self.cache.reorder_cache(rows_of(parents))
        outputs = self.model(
            encoder_outputs=(self.states,),
            attention_mask=self.source_mask,
            decoder_input_ids=tokens.flatten()[:, None],
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
        )
        return outputs.logits[:, -1]

    def keep(self, sentences: torch.Tensor) -> None:
        """Go on with these sentences alone."""
        slots = torch.arange(self.num_beams, device=sentences.device)
        rows = (sentences[:, None] * self.num_beams + slots).flatten()
        self.cache.reorder_cache(rows)
        self.states = self.states[rows]
        self.source_mask = None if self.source_mask is None else self.source_mask[rows]


def rows_of(parents: torch.Tensor) -> torch.Tensor:
    """Return the rows, (R,), of hypotheses that are counted (B, K) within their sentence."""
    return (parents + torch.arange(len(parents), device=parents.device)[:, None] * parents.shape[1]).flatten()


def make_steps(model: Any, states: torch.Tensor, source_mask: torch.Tensor | None, num_beams: int) -> Any:
    """Return `FusedSteps` where the decoder is as it was written, else `ModelSteps`."""
    return (FusedSteps if is_as_written(model) else ModelSteps)(model, states, source_mask, num_beams)


def is_as_written(model: Any) -> bool:
    """Tell whether the decoder's modules are torch's and ours, with plain weights, and nobody looks at their work."""
    if model.training or model._compiled_call_impl is not None or "forward" in vars(model):
        return False
    if torch.is_autocast_enabled(model.device.type):
        return False
    homes = (type(model).__module__, "torch.nn.modules")
    for module in (model.lm_head, *model.model.decoder.modules()):
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        # transformers leaves its own hooks in place once attention was asked for.
        if any(getattr(hook, "__module__", None) != "transformers.utils.output_capturing" for hook in hooks):
            return False
        if not type(module).__module__.startswith(homes) or "forward" in vars(module):
            return False
        if any(
            type(parameter) is not nn.Parameter for parameter in module._parameters.values() if parameter is not None
        ):
            return False
    return True


__all__ = ["FusedSteps", "ModelSteps", "make_steps"]
