"""One step of the decoder: logits of the next token for all hypotheses of all sentences.

`FusedSteps` computes them from the model's modules, without copying or repeating what is cached; `ModelSteps` asks the
model itself. A search may use either.

Axis letters: B sentences, K hypotheses of a sentence (beams), R = B * K rows, T target positions so far, S source
positions, H heads, D model width, V vocabulary.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.modules import module as torch_module
from transformers.generation import GenerationMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .cpu_vaswani import can_be_packed, projection


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

    can_keep = True

    def __init__(self, model: Any, states: torch.Tensor, source_mask: torch.Tensor | None, num_beams: int):
        self.decoder, self.lm_head = model.model.decoder, model.lm_head
        self.num_beams, self.length, self.device = num_beams, 0, states.device
        # Caches grow by this many positions at least. Attention covers all of them, masked: a slice would be copied.
        self.smallest_growth = min(16, max(1, 64 // num_beams))
        self.heads = model.config.decoder_attention_heads
        rows = len(states) * num_beams
        self.layers = [LayerProjections(layer, rows) for layer in self.decoder.layers]
        weight, bias = self.lm_head.weight, self.lm_head.bias
        is_in_place = bias is None and not can_be_packed(weight, rows)
        self.to_types = self._multiply_in_place if is_in_place else projection(weight, bias, rows)
        attentions = [layer.encoder_attn for layer in self.decoder.layers]
        self.source_keys = [split_heads(attn.k_proj(states), attn.head_dim) for attn in attentions]
        self.source_values = [split_heads(attn.v_proj(states), attn.v_head_dim) for attn in attentions]
        self.source_mask: torch.Tensor | None = None  # (B, K, S), added to scores
        if source_mask is not None and not source_mask.all():
            lowest = torch.finfo(states.dtype).min
            self.source_mask = states.new_zeros(source_mask.shape).masked_fill(source_mask == 0, lowest)
            self.source_mask = self.source_mask[:, None].repeat(1, num_beams, 1)
        # Room for P positions, the K slots of one side by side: each (B * H, P * K, d_k), (B * H, P * K, d_v)
        self.keys = [keys.new_empty(len(keys), 0, keys.shape[2]) for keys in self.source_keys]
        self.values = [values.new_empty(len(values), 0, values.shape[2]) for values in self.source_values]
        self.mask = states.new_empty(len(states), num_beams, 0)  # (B, K, P * K), added to scores
        self.logits = states.new_empty(0)

    def __call__(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        """Append (B, K, T) tokens, T each to the hypothesis of its sentence that `parents` (B, K) names.

        `parents` is None where every hypothesis is its own successor. Returns the (R, V) logits of what comes next,
        which hold until the next call.
        """
        for column in tokens.unbind(-1)[:-1]:
            self._append(column, parents)
            parents = None
        return self.to_types(self._append(tokens[..., -1], parents))

    def _append(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        """Append (B, K) tokens; return the decoder's (R, D) output."""
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
        return hidden_states

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
        if self.length * self.num_beams == self.mask.shape[2]:
            self._grow()
        if parents is not None and self.num_beams > 1:
            self.mask = self.mask.gather(1, parents[..., None].expand_as(self.mask))
        slots = self.mask[..., self.length * self.num_beams :][..., : self.num_beams]
        slots.diagonal(dim1=1, dim2=2).zero_()

    def _grow(self) -> None:
        """Make room, by a fixed share of what there is: so all copies together cost no more than a few of the last."""
        slots = max(self.smallest_growth, self.length // 4) * self.num_beams
        self.mask = pad(self.mask, (0, slots), value=-math.inf)
        self.keys, self.values = (
            [pad(cache, (0, 0, 0, slots)) for cache in kind] for kind in (self.keys, self.values)
        )

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
            cache[index][:, start:end] = self._fold(states, width)
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


def fuse(attention: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight and bias that project to queries, keys and values at once."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    weights, biases = [part.weight for part in projections], [part.bias for part in projections]
    if all(bias is None for bias in biases):
        return torch.cat(weights), None
    pairs = zip(weights, biases, strict=True)
    return torch.cat(weights), torch.cat([w.new_zeros(len(w)) if bias is None else bias for w, bias in pairs])


def split_heads(states: torch.Tensor, width: int) -> torch.Tensor:
    """Turn (B, S, H * width) into (B * H, S, width)."""
    return states.unflatten(-1, (-1, width)).transpose(1, 2).flatten(0, 1)


class ModelSteps:
    """The same through the model's own methods, called as transformers' searches call them.

    For whatever changes what these do: adapters, quantized, sharded or offloaded weights, hooks, overridden methods.

    Parameters
    ----------
    model : VaswaniForConditionalGeneration
    input_ids : Tensor of shape (R, T)
        Only its device counts: it is where tokens are, and where logits are returned.
    num_beams : int
        K.
    model_kwargs : dict
        What the model is given beside the tokens, for R rows: `encoder_outputs`, `attention_mask`, a cache, ...
    """

    can_keep = False  # nobody knows what else is counted by rows

    def __init__(self, model: Any, input_ids: torch.Tensor, num_beams: int, model_kwargs: dict[str, Any]):
        self.model, self.num_beams, self.model_kwargs = model, num_beams, model_kwargs
        self.device = input_ids.device
        self.input_ids = input_ids[:, :0]

    def __call__(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        """Append (B, K, T) tokens to the hypotheses that (B, K) `parents` name; return (R, V) logits."""
        is_first = not self.input_ids.shape[1]
        if parents is not None:
            self._reorder(rows_of(parents))
        self.input_ids = torch.cat([self.input_ids, tokens.flatten(0, 1)], dim=1)
        uses_cache = self.model_kwargs.get("use_cache", True)
        inputs = self.model.prepare_inputs_for_generation(
            self.input_ids,
            next_sequence_length=tokens.shape[2] if uses_cache and not is_first else None,
            is_first_iteration=is_first,
            **self.model_kwargs,
        )
        outputs = self.model(**inputs, return_dict=True)
        self.model_kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self.model_kwargs, is_encoder_decoder=True
        )
        return outputs.logits[:, -1].to(self.device)

    def _reorder(self, rows: torch.Tensor) -> None:
        self.input_ids = self.input_ids[rows]
        cache = self.model_kwargs.get("past_key_values")
        if hasattr(self.model, "_reorder_cache"):
            self.model_kwargs["past_key_values"] = self.model._reorder_cache(cache, rows)
        elif cache is not None:
            cache.reorder_cache(rows)


def rows_of(parents: torch.Tensor) -> torch.Tensor:
    """Return the rows, (R,), of hypotheses that are counted (B, K) within their sentence."""
    return (parents + torch.arange(len(parents), device=parents.device)[:, None] * parents.shape[1]).flatten()


def make_steps(model: Any, input_ids: torch.Tensor, num_beams: int, model_kwargs: dict[str, Any]) -> Any:
    """Return `FusedSteps` where they give what the model's own methods would, else `ModelSteps`.

    Parameters
    ----------
    model, input_ids, num_beams, model_kwargs
        As for `ModelSteps`.
    """
    if not is_as_written(model):
        return ModelSteps(model, input_ids, num_beams, model_kwargs)
    mask = model_kwargs.get("attention_mask")
    mask = None if mask is None else mask[::num_beams].to(model.device)
    return FusedSteps(model, model_kwargs["encoder_outputs"][0][::num_beams], mask, num_beams)


# The methods whose work `FusedSteps` does, as they were written: of torch's modules, of ours (`stands_for`), and of
# `generate`. Whoever replaces one, in an object, a class or a subclass, is heard.
FORWARDS: dict[type, Any] = {kind: kind.forward for kind in (nn.Linear, nn.LayerNorm, nn.Embedding, nn.ModuleList)}
METHODS = {
    name: getattr(GenerationMixin, name)
    for name in ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
}


def stands_for(*kinds: type[nn.Module]) -> None:
    """Note what the `forward` of these modules is, which `FusedSteps` stands for."""
    FORWARDS.update({kind: kind.forward for kind in kinds})


def is_as_written(model: Any) -> bool:
    """Tell whether the way from tokens to logits is as it was written, and nobody looks at what passes along it."""
    if model.training or not is_untouched(model) or torch_module._has_any_global_hook():
        return False
    if type(model).forward not in FORWARDS.values():
        return False
    for name, method in METHODS.items():
        # What is put into the object and is its own method still, as PEFT leaves it behind, changes nothing.
        if getattr(getattr(model, name), "__func__", None) is not method or getattr(model, name).__self__ is not model:
            return False
    if hasattr(model, "_reorder_cache") or not has_known_attention(model.config):
        return False
    modules = (model.model, model.lm_head, *model.model.decoder.modules())
    are_plain = all(
        type(module) in FORWARDS and type(module).forward is FORWARDS[type(module)] and is_untouched(module)
        for module in modules
    )
    return are_plain and not torch.is_autocast_enabled(model.device.type)


def has_known_attention(config: Any) -> bool:
    """Tell whether transformers or we compute attention, rather than a function that a user registered."""
    name = config._attn_implementation
    function = ALL_ATTENTION_FUNCTIONS.get(name) if name in ALL_ATTENTION_FUNCTIONS else None
    return name == "eager" if function is None else function.__module__.startswith("transformers.")


def is_untouched(module: nn.Module) -> bool:
    """Tell whether an object has its class's `forward`, plain weights that are there, and no hooks."""
    if module._compiled_call_impl is not None or "forward" in vars(module):
        return False
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    # transformers leaves its own hooks in place once attention was asked for.
    if any(getattr(hook, "__module__", None) != "transformers.utils.output_capturing" for hook in hooks):
        return False
    weights = (weight for weight in module._parameters.values() if weight is not None)
    return all(type(weight) is nn.Parameter and not weight.is_meta for weight in weights)


__all__ = ["FusedSteps", "ModelSteps", "make_steps"]
