"""The Transformer and its gradients in float64 NumPy, from the equations of Vaswani et al. (2017), sections 3.1-3.5.

A reference to test against: it favors being obviously right over being fast. It takes one sentence pair at a time, so
that every matrix is the paper's, (positions x width), and one head at a time. Each function is one equation and
returns its value with its `backward`, derived by hand, which turns the gradient of the loss by that value into the
gradient by the inputs and adds that by the parameters to `Parameters.gradients`. No dropout, no autograd, no torch.

In the comments dX is the gradient of the loss by X.
"""

from collections.abc import Callable

import numpy as np


LAYER_NORM_EPSILON = 1e-5  # not in the paper; as the layer normalization of PyTorch
IGNORED = -100  # label of a position without a target

Backward = Callable[[np.ndarray], np.ndarray]


class Parameters:
    """The weights of a model or, under a prefix, of one of its modules, by their names in the state dict."""

    def __init__(self, values: dict[str, np.ndarray]):
        self.values = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
        self.gradients = {name: np.zeros_like(value) for name, value in self.values.items()}
        self.prefix = ""

    def __truediv__(self, module: str) -> "Parameters":
        child = Parameters({})
        child.values, child.gradients, child.prefix = self.values, self.gradients, f"{self.prefix}{module}."
        return child

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.values

    def __getitem__(self, name: str) -> np.ndarray:
        return self.values[self.prefix + name]

    def add_gradient(self, name: str, gradient: np.ndarray) -> None:
        """Add to what other uses of the parameter (sentences, positions, tied matrices) have given it."""
        self.gradients[self.prefix + name] += gradient


def linear(x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, Backward]:
    """x W + b. The state dict stores W transposed, and no b where the model has none."""
    W = parameters["weight"].T
    has_bias = "bias" in parameters

    def backward(dy: np.ndarray) -> np.ndarray:
        parameters.add_gradient("weight", (x.T @ dy).T)
        if has_bias:
            parameters.add_gradient("bias", dy.sum(axis=0))
        return dy @ W.T

    return (x @ W + parameters["bias"] if has_bias else x @ W), backward


def softmax(scores: np.ndarray) -> tuple[np.ndarray, Backward]:
    """exp(s_j) / sum_k exp(s_k) in every row. Subtracting the row's maximum changes nothing but the overflow."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    a = exponentials / exponentials.sum(axis=-1, keepdims=True)

    def backward(da: np.ndarray) -> np.ndarray:
        # d a_j / d s_k = a_j (1[j = k] - a_k)
        return a * (da - (da * a).sum(axis=-1, keepdims=True))

    return a, backward


def attention(Q: np.ndarray, K: np.ndarray, V: np.ndarray, legal: np.ndarray) -> tuple[np.ndarray, Callable]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, Eq. 1 of section 3.2.1.

    `legal` (queries x keys) is False for the connections that are "masked out (setting to -inf)", section 3.2.3.
    """
    d_k = Q.shape[1]
    A, softmax_backward = softmax(np.where(legal, Q @ K.T / np.sqrt(d_k), -np.inf))

    def backward(dZ: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Z = A V and S = Q K^T / sqrt(d_k). An illegal connection has A = 0, hence dS = 0.
        dV = A.T @ dZ
        dS = softmax_backward(dZ @ V.T)
        return dS @ K / np.sqrt(d_k), dS.T @ Q / np.sqrt(d_k), dV

    return A @ V, backward


def multi_head(
    x: np.ndarray, memory: np.ndarray, legal: np.ndarray, h: int, parameters: Parameters
) -> tuple[np.ndarray, Callable]:
    """MultiHead = Concat(head_1, ..., head_h) W^O, head_i = Attention(x W_i^Q, m W_i^K, m W_i^V): section 3.2.2.

    W_1^Q, ..., W_h^Q stand side by side in the columns of q_proj, and so on. `backward` returns dx and dmemory, to be
    added up where the two are one and the same (self-attention).
    """
    Q, q_backward = linear(x, parameters / "q_proj")
    K, k_backward = linear(memory, parameters / "k_proj")
    V, v_backward = linear(memory, parameters / "v_proj")
    d_k, d_v = Q.shape[1] // h, V.shape[1] // h
    heads, head_backwards = [], []
    for i in range(h):
        k_columns, v_columns = slice(i * d_k, (i + 1) * d_k), slice(i * d_v, (i + 1) * d_v)
        head, head_backward = attention(Q[:, k_columns], K[:, k_columns], V[:, v_columns], legal)
        heads.append(head)
        head_backwards.append(head_backward)
    output, out_backward = linear(np.concatenate(heads, axis=1), parameters / "out_proj")

    def backward(doutput: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        dheads = np.split(out_backward(doutput), h, axis=1)
        # zip(*) turns one (dQ_i, dK_i, dV_i) per head into all dQ_i, all dK_i, all dV_i.
        by_input = zip(*(head_backwards[i](dheads[i]) for i in range(h)), strict=True)
        dQ, dK, dV = (np.concatenate(parts, axis=1) for parts in by_input)
        return q_backward(dQ), k_backward(dK) + v_backward(dV)

    return output, backward


def feed_forward(x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, Backward]:
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, Eq. 2 of section 3.3."""
    inner, backward_1 = linear(x, parameters / "fc1")
    output, backward_2 = linear(np.maximum(0, inner), parameters / "fc2")

    def backward(doutput: np.ndarray) -> np.ndarray:
        return backward_1(backward_2(doutput) * (inner > 0))

    return output, backward


def layer_norm(x: np.ndarray, parameters: Parameters) -> tuple[np.ndarray, Backward]:
    """Gain * (x - mean) / sqrt(variance + epsilon) + bias, row by row (Ba et al. 2016, cited in section 3.1)."""
    sigma = np.sqrt(x.var(axis=1, keepdims=True) + LAYER_NORM_EPSILON)
    n = (x - x.mean(axis=1, keepdims=True)) / sigma

    def backward(dy: np.ndarray) -> np.ndarray:
        parameters.add_gradient("weight", (dy * n).sum(axis=0))
        parameters.add_gradient("bias", dy.sum(axis=0))
        dn = dy * parameters["weight"]
        # n_j depends on x_k by itself, by the mean and by sigma: dn_j/dx_k = (1[j = k] - 1/d - n_j n_k/d) / sigma
        return (dn - dn.mean(axis=1, keepdims=True) - n * (dn * n).mean(axis=1, keepdims=True)) / sigma

    return parameters["weight"] * n + parameters["bias"], backward


def encoder_layer(x: np.ndarray, legal: np.ndarray, h: int, parameters: Parameters) -> tuple[np.ndarray, Backward]:
    """Two sub-layers, the output of each LayerNorm(x + Sublayer(x)): section 3.1, Figure 1 left."""
    attended, attention_backward = multi_head(x, x, legal, h, parameters / "self_attn")
    y, norm_1_backward = layer_norm(x + attended, parameters / "self_attn_layer_norm")
    transformed, ffn_backward = feed_forward(y, parameters)
    z, norm_2_backward = layer_norm(y + transformed, parameters / "final_layer_norm")

    def backward(dz: np.ndarray) -> np.ndarray:
        dsum_2 = norm_2_backward(dz)
        dsum_1 = norm_1_backward(dsum_2 + ffn_backward(dsum_2))
        return dsum_1 + sum(attention_backward(dsum_1))

    return z, backward


def decoder_layer(
    x: np.ndarray, memory: np.ndarray, causal: np.ndarray, legal: np.ndarray, h: int, parameters: Parameters
) -> tuple[np.ndarray, Callable]:
    """Three sub-layers, the second over the encoder's output, the memory: section 3.1, Figure 1 right."""
    attended, self_backward = multi_head(x, x, causal, h, parameters / "self_attn")
    y, norm_1_backward = layer_norm(x + attended, parameters / "self_attn_layer_norm")
    looked_up, cross_backward = multi_head(y, memory, legal, h, parameters / "encoder_attn")
    z, norm_2_backward = layer_norm(y + looked_up, parameters / "encoder_attn_layer_norm")
    transformed, ffn_backward = feed_forward(z, parameters)
    output, norm_3_backward = layer_norm(z + transformed, parameters / "final_layer_norm")

    def backward(doutput: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        dsum_3 = norm_3_backward(doutput)
        dsum_2 = norm_2_backward(dsum_3 + ffn_backward(dsum_3))
        dy, dmemory = cross_backward(dsum_2)
        dsum_1 = norm_1_backward(dsum_2 + dy)
        return dsum_1 + sum(self_backward(dsum_1)), dmemory

    return output, backward


def neighborhood(length: int, r: int | None, is_causal: bool) -> np.ndarray:
    """Say which of its own positions a position sees (queries x keys), sections 3.2.3 and 4.

    All, or "up to and including that position"; restricted, r of them: the last ones, or those around it, where an
    even r has one more before it than behind.
    """
    sees = np.zeros((length, length), dtype=bool)
    for i in range(length):
        end = i + 1 if is_causal else length
        start = 0
        if r is not None:
            end = min(end, i + 1 if is_causal else i - r // 2 + r)
            start = max(start, i + 1 - r if is_causal else i - r // 2)
        sees[i, start:end] = True
    return sees


def positional_encoding(length: int, d_model: int) -> np.ndarray:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same): section 3.5."""
    encoding = np.empty((length, d_model))
    for pos in range(length):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            encoding[pos, 2 * i], encoding[pos, 2 * i + 1] = np.sin(angle), np.cos(angle)
    return encoding


def embed(ids: np.ndarray, config, matrix: str, stack: Parameters, root: Parameters) -> tuple[np.ndarray, Callable]:
    """E[id] sqrt(d_model) + PE(pos), sections 3.4 and 3.5. <pad> embeds as zero, whatever its row of E."""
    real = (ids != config.pad_token_id)[:, None]
    scale = np.sqrt(config.d_model)
    if config.position_embedding_type == "learned":  # Table 3 (E)
        positions = stack["embed_positions.weight"][: len(ids)]
    else:
        positions = positional_encoding(len(ids), config.d_model)

    def backward(dx: np.ndarray) -> None:
        dE = np.zeros_like(root[matrix])
        np.add.at(dE, ids, dx * real * scale)  # an id that occurs twice gets both gradients
        root.add_gradient(matrix, dE)
        if config.position_embedding_type == "learned":
            dpositions = np.zeros_like(stack["embed_positions.weight"])
            dpositions[: len(ids)] = dx
            stack.add_gradient("embed_positions.weight", dpositions)

    return root[matrix][ids] * real * scale + positions, backward


def transformer(
    source: np.ndarray, source_is_real: np.ndarray, target: np.ndarray, config, root: Parameters
) -> tuple[np.ndarray, Callable]:
    """Figure 1 for one pair: (S,) source ids and (T,) shifted target ids to (T, V) logits."""
    encoder, decoder = root / "model" / "encoder", root / "model" / "decoder"
    # Section 3.4: one matrix for the embeddings and the softmax, unless the model has one for each.
    shared = "model.shared.weight"
    source_matrix, target_matrix, softmax_matrix = (
        name if name in root else shared
        for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    )

    memory, source_backward = embed(source, config, source_matrix, encoder, root)
    r = config.attention_restriction
    near = neighborhood(len(source), r, is_causal=False)
    legal = np.tile(source_is_real, (len(source), 1))  # every position sees every real one
    # Padding that sees padding only would have a softmax over nothing; nobody looks at what it gets instead.
    legal = legal & near | np.eye(len(source), dtype=bool)
    encoder_backwards = []
    for n in range(config.encoder_layers):
        layer = encoder / f"layers.{n}"
        memory, layer_backward = encoder_layer(memory, legal, config.encoder_attention_heads, layer)
        encoder_backwards.append(layer_backward)

    x, target_backward = embed(target, config, target_matrix, decoder, root)
    causal = neighborhood(len(target), r, is_causal=True)
    legal = np.tile(source_is_real, (len(target), 1))
    decoder_backwards = []
    for n in range(config.decoder_layers):
        layer = decoder / f"layers.{n}"
        x, layer_backward = decoder_layer(x, memory, causal, legal, config.decoder_attention_heads, layer)
        decoder_backwards.append(layer_backward)

    def backward(dlogits: np.ndarray) -> None:
        root.add_gradient(softmax_matrix, dlogits.T @ x)
        dx = dlogits @ root[softmax_matrix]
        dmemory = np.zeros_like(memory)
        for layer_backward in reversed(decoder_backwards):
            dx, dmemory_of_layer = layer_backward(dx)
            dmemory += dmemory_of_layer  # all decoder layers look at one memory
        target_backward(dx)
        for layer_backward in reversed(encoder_backwards):
            dmemory = layer_backward(dmemory)
        source_backward(dmemory)

    return x @ root[softmax_matrix].T, backward


def forward_and_backward(
    weights: dict[str, np.ndarray], config, input_ids: np.ndarray, attention_mask: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, float, dict[str, np.ndarray]]:
    """Return the (B, T, V) logits, the mean cross-entropy over all real targets, and its gradient by every weight."""
    root = Parameters(weights)
    targets_in_batch = (labels != IGNORED).sum()
    all_logits, loss = [], 0.0
    for source, mask, target in zip(input_ids, attention_mask, labels, strict=True):
        # "Outputs (shifted right)", Figure 1: the decoder sees the target before the one that it predicts.
        shifted = np.concatenate([[config.decoder_start_token_id], target[:-1]])
        shifted = np.where(shifted == IGNORED, config.pad_token_id, shifted)
        logits, backward = transformer(source, mask.astype(bool), shifted, config, root)
        probabilities, _ = softmax(logits)
        dlogits = np.zeros_like(logits)
        for position in np.flatnonzero(target != IGNORED):
            loss -= np.log(probabilities[position, target[position]]) / targets_in_batch
            # d(-log p_y)/dlogits = p - onehot(y)
            dlogits[position] = probabilities[position] / targets_in_batch
            dlogits[position, target[position]] -= 1 / targets_in_batch
        backward(dlogits)
        all_logits.append(logits)
    return np.stack(all_logits), loss, root.gradients
