"""Our Transformer as two ONNX graphs, and our search over them by ONNX Runtime.

Axis letters: see `modeling_vaswani.py`; here also L layers of the decoder.
"""

import logging
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from vaswani.errors import UserError, first_line, require
from vaswani.models.configuration_vaswani import VaswaniConfig
from vaswani.models.decoding_vaswani import DecodingSettings
from vaswani.models.fusion_vaswani import AS_WRITTEN, Fused
from vaswani.models.generation_vaswani import rows_of
from vaswani.models.modeling_vaswani import VaswaniForConditionalGeneration
from vaswani.workers import usable_cores

from .companions import load_config, save_beside


ENCODER, DECODER = "encoder_model.onnx", "decoder_with_past_model.onnx"
QUANTIZATIONS = ("float32", "int8")
OPSET = 18
# What the exporter sees; every length may be another one later.
SENTENCES, SOURCE_LENGTH, PAST_LENGTH = 2, 5, 3


class EncoderGraph(nn.Module):
    """The encoder, with the keys and values of encoder-decoder attention, computed once for a source."""

    def __init__(self, model: VaswaniForConditionalGeneration):
        super().__init__()
        self.encoder: Any = model.model.encoder
        self.decoder: Any = model.model.decoder

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Turn (B, S) ids and mask into (B, S, D) states, (L, B, H, S, d_k) keys and (L, B, H, S, d_v) values."""
        states = self.encoder.add_positions(self.encoder.embed(input_ids, None))
        legal = as_scores(attention_mask)
        for layer in self.encoder.layers:
            query, key, value = heads_of(layer.self_attn, states, "qkv")
            states = layer.self_attn_layer_norm(states + attention(layer.self_attn, query, key, value, legal))
            states = layer.final_layer_norm(states + layer._feed_forward(states))
        pairs = [heads_of(layer.encoder_attn, states, "kv") for layer in self.decoder.layers]
        return states, torch.stack([key for key, _ in pairs]), torch.stack([value for _, value in pairs])


class DecoderGraph(nn.Module):
    """One step of the decoder: the next token of R hypotheses."""

    def __init__(self, model: VaswaniForConditionalGeneration):
        super().__init__()
        self.decoder: Any = model.model.decoder
        self.lm_head = model.lm_head

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        source_keys: torch.Tensor,
        source_values: torch.Tensor,
        past_keys: torch.Tensor,
        past_values: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (R, V) logits, and the (L, R, H, T + 1, d_k) keys and (L, R, H, T + 1, d_v) values of the targets.

        Parameters
        ----------
        input_ids : Tensor of shape (R, 1)
        attention_mask : Tensor of shape (R, S)
            Of the sources.
        source_keys, source_values : Tensor of shape (L, R, H, S, d_k) and (L, R, H, S, d_v)
        past_keys, past_values : Tensor of shape (L, R, H, T, d_k) and (L, R, H, T, d_v)
        """
        states = self.decoder.add_positions(self.decoder.embed(input_ids, None), past_keys.shape[3])
        legal, pairs = as_scores(attention_mask), []
        for number, layer in enumerate(self.decoder.layers):
            query, key, value = heads_of(layer.self_attn, states, "qkv")
            pairs.append((torch.cat([past_keys[number], key], 2), torch.cat([past_values[number], value], 2)))
            states = layer.self_attn_layer_norm(states + attention(layer.self_attn, query, *pairs[-1]))
            (query,) = heads_of(layer.encoder_attn, states, "q")
            output = attention(layer.encoder_attn, query, source_keys[number], source_values[number], legal)
            states = layer.encoder_attn_layer_norm(states + output)
            states = layer.final_layer_norm(states + layer._feed_forward(states))
        keys, values = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
        return self.lm_head(states)[:, 0], keys, values


def as_scores(mask: torch.Tensor) -> torch.Tensor:
    """Return what (B, S) masks add to scores, (B, 1, 1, S)."""
    return (1.0 - mask[:, None, None].float()) * torch.finfo(torch.float32).min


def heads_of(module: Any, states: torch.Tensor, which: str) -> list[torch.Tensor]:
    """Project (B, T, D) states to (B, H, T, width) queries, keys or values: "qkv" names which."""
    widths = {"q": module.head_dim, "k": module.head_dim, "v": module.v_head_dim}
    return [
        getattr(module, f"{name}_proj")(states).unflatten(-1, (-1, widths[name])).transpose(1, 2) for name in which
    ]


def attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return Eq. 1 of section 3.2.1, projected: (B, T, D); `mask` is added to the scores."""
    scores = query @ key.transpose(2, 3) * module.scaling
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return module.out_proj((weights @ value).transpose(1, 2).flatten(2))


def save_for_onnx(
    ours: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    quantization: str = "float32",
) -> None:
    """Write both graphs, the tokenizer's files and our config into a folder that exists.

    In "int8" the weights are in it, and activations are quantized as they come.

    Raises
    ------
    UserError
        If a library is missing, or the graphs cannot be this model, or its settings ask for another search than ours.
    """
    for name in ("onnx", "onnxruntime", "onnxscript"):
        require(name, "the format onnx", "export")
    check_has_graphs(ours.config)
    foreign = DecodingSettings.read({}, None, ours.generation_config).foreign
    if foreign is not None:
        raise UserError(
            f"{foreign}={getattr(ours.generation_config, foreign)!r} must be left out of generation_config.json here: "
            "ONNX Runtime knows beam search and greedy search alone"
        )
    encoder, decoder = EncoderGraph(ours).eval(), DecoderGraph(ours).eval()
    # Each example is a tensor of its own: the exporter would take two inputs that are the same for one.
    ids, mask = (torch.ones(SENTENCES, SOURCE_LENGTH, dtype=torch.long) for _ in range(2))
    with torch.no_grad():
        _, *source = encoder(ids, mask)
    past = [tensor[:, :, :, :PAST_LENGTH].clone() for tensor in source]
    rows, length, so_far = (torch.export.Dim(name) for name in ("sentences", "source", "target"))
    of_source, of_target = {1: rows, 3: length}, {1: rows, 3: so_far}
    _export(
        encoder,
        folder / ENCODER,
        {"input_ids": (ids, {0: rows, 1: length}), "attention_mask": (mask, {0: rows, 1: length})},
        ("last_hidden_state", "source_keys", "source_values"),
    )
    _export(
        decoder,
        folder / DECODER,
        {
            "input_ids": (ids[:, :1].clone(), {0: rows}),
            "attention_mask": (mask, {0: rows, 1: length}),
            "source_keys": (source[0], of_source),
            "source_values": (source[1], of_source),
            "past_keys": (past[0], of_target),
            "past_values": (past[1], of_target),
        },
        ("logits", "keys", "values"),
    )
    if quantization == "int8":
        _quantize(folder)
    save_beside(ours, tokenizer, folder)


def _export(
    graph: nn.Module, file: Path, inputs: dict[str, tuple[torch.Tensor, dict]], outputs: Sequence[str]
) -> None:
    """Write a graph, given an example of each input and the names of its axes that vary."""
    examples, shapes = zip(*inputs.values(), strict=True)
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")  # of names of axes, and of torch's own use of torch
        torch.onnx.export(
            graph,
            examples,
            str(file),
            input_names=tuple(inputs),
            output_names=tuple(outputs),
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
        )


@contextmanager
def _quiet(name: str) -> Generator[None, None, None]:
    """Let a logger tell errors alone."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _quantize(folder: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    for name in (ENCODER, DECODER):
        whole = folder / f"float32-{name}"
        (folder / name).rename(whole)
        with _quiet(""):  # the root's, by which it advises what does not help here
            quantize_dynamic(whole, folder / name, weight_type=QuantType.QInt8, per_channel=True)
        whole.unlink()


def check_has_graphs(config: VaswaniConfig) -> None:
    """Refuse a model whose attention the graphs do not have."""
    if config.attention_restriction is not None:
        raise UserError(
            f"attention_restriction={config.attention_restriction} must be none here: the graphs attend to everything"
        )


class OnnxModel(VaswaniForConditionalGeneration):
    """A folder of `save_for_onnx`, opened: ONNX Runtime computes, and all of our ``generate()`` searches.

    Raises
    ------
    UserError
        If ONNX Runtime is not installed, or cannot open the graphs.
    """

    engine = "ONNX Runtime"

    def __init__(self, folder: Path, threads: int = 1):
        runtime = require("onnxruntime", "the engine onnxruntime", "export")
        with torch.device("meta"):  # no weights of our own
            super().__init__(load_config(folder))
        self.generation_config = GenerationConfig.from_pretrained(folder)
        self.eval()
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.threads = threads
        try:
            self.encoder_graph, self.decoder_graph = (
                runtime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
                for name in (ENCODER, DECODER)
            )
        except Exception as error:  # its errors have no common class but this
            raise UserError(f"ONNX Runtime cannot open {str(folder)!r}: {first_line(error)}") from error

    @property
    def device(self) -> torch.device:
        """Where tensors come from and go to."""
        return torch.device("cpu")

    def __str__(self) -> str:
        """Say who computes and how."""
        return f"{self.engine}, 1 worker of {self.threads} thread(s), cpu"

    def generate(
        self, inputs: torch.Tensor | None = None, generation_config: GenerationConfig | None = None, **kwargs: Any
    ) -> Any:
        """Search as our own models do.

        Returns
        -------
        Tensor of shape (B * num_return_sequences, T), or a ModelOutput
            Of greedy search, too, the latter has `sequences_scores`: log-probabilities by the graphs alone.

        Raises
        ------
        ValueError
            If the call asks for anything else than our own searches, such as sampling.
        """
        if self.has_own_search(generation_config, **kwargs):
            return super().generate(inputs, generation_config, **kwargs)
        alone = kwargs | dict.fromkeys(("return_dict_in_generate", "output_scores", "output_logits"), False)
        ids, mask = kwargs.get("input_ids") if inputs is None else inputs, kwargs.get("attention_mask")
        if ids is None or mask is None or not self.has_own_search(generation_config, **alone):
            asked = self._settings(alone, generation_config)[0].foreign or "all else"
            raise ValueError(f"ONNX Runtime knows beam search and greedy search here: {asked} takes engine 'torch'")
        sequences = super().generate(inputs, generation_config, **alone)
        labels = sequences[:, 1:]
        found = self.log_probabilities(ids, mask, labels).masked_fill(labels == self.config.pad_token_id, 0)
        return ModelOutput(sequences=sequences, sequences_scores=found.sum(1))

    def encode_source(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, fused: Fused = AS_WRITTEN
    ) -> BaseModelOutput:
        """Encode; the keys and values for the decoder stand in the place of hidden states."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        states, keys, values = _run(self.encoder_graph, inputs)
        return BaseModelOutput(last_hidden_state=states, hidden_states=(keys, values))

    def decoder_state(self, num_beams: int, model_kwargs: dict[str, Any], fused: Fused = AS_WRITTEN) -> "OnnxState":
        """Return the state of a search."""
        keys, values = model_kwargs["encoder_outputs"].hidden_states
        return OnnxState(self.decoder_graph, keys, values, model_kwargs["attention_mask"], num_beams)

    def log_probabilities(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Return those of (B, T) labels for (B, S) sources, ``<pad>`` being no candidate."""
        encoded = self.encode_source(input_ids, attention_mask)
        state = self.decoder_state(1, {"encoder_outputs": encoded, "attention_mask": attention_mask})
        columns = []
        for token, label in zip(self.prepare_decoder_input_ids_from_labels(labels).T, labels.T, strict=True):
            logits = state.step(token[:, None, None], None)
            logits[:, self.config.pad_token_id] = -torch.inf
            columns.append(logits.log_softmax(-1).gather(1, label[:, None]))
        return torch.cat(columns, dim=1)


class OnnxState:
    """The `DecoderState` of a graph of the decoder.

    Parameters
    ----------
    graph : InferenceSession
    keys, values : Tensor of shape (L, B, H, S, d_k) and (L, B, H, S, d_v)
        Of the source.
    mask : Tensor of shape (R, S)
    num_beams : int
        K.
    """

    def __init__(self, graph: Any, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, num_beams: int):
        self.graph, self.num_beams = graph, num_beams
        self.inputs = {"attention_mask": mask}
        for name, tensor in (("keys", keys), ("values", values)):
            tensor = tensor.repeat_interleave(num_beams, dim=1)
            self.inputs |= {f"source_{name}": tensor, f"past_{name}": tensor[:, :, :, :0]}
        self.output_ids: torch.Tensor | None = None

    def step(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        """Append (B, K, T) tokens to the hypotheses of (B, K) `parents`; return the (R, V) logits of the next one."""
        if parents is not None and self.num_beams > 1:
            self._take(rows_of(parents), ("past_keys", "past_values"))
        for column in tokens.flatten(0, 1).T:
            logits, *past = _run(self.graph, self.inputs | {"input_ids": column[:, None]})
            self.inputs["past_keys"], self.inputs["past_values"] = past
        return logits if self.output_ids is None else logits[:, self.output_ids]

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the (B',) sentences."""
        rows = (sentences[:, None] * self.num_beams + torch.arange(self.num_beams)).flatten()
        self.inputs["attention_mask"] = self.inputs["attention_mask"][rows]
        self._take(rows, ("past_keys", "past_values", "source_keys", "source_values"))

    def cut_output(self, ids: torch.Tensor) -> None:
        """Return the logits of the tokens with these (N,) ids alone."""
        self.output_ids = ids

    def _take(self, rows: torch.Tensor, names: tuple[str, ...]) -> None:
        for name in names:
            self.inputs[name] = self.inputs[name].index_select(1, rows)


def _run(graph: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [torch.from_numpy(output) for output in graph.run(None, {k: v.numpy() for k, v in inputs.items()})]


def load_onnx(folder: Path, device: str | None = None, dtype: str = "auto", workers: int | None = None) -> OnnxModel:
    """Open a folder of `save_for_onnx`; arguments as for `engines.load_engine`.

    Raises
    ------
    UserError
        If the folder is none, or anything but all cores of a CPU is asked for.
    """
    for field, value, allowed in (("device", device, "cpu"), ("dtype", dtype, "auto"), ("workers", workers, 1)):
        if value not in (None, allowed):
            raise UserError(f"{field}={value!r} must be {allowed!r} for engine 'onnxruntime': the graphs say the rest")
    return OnnxModel(folder, usable_cores())
