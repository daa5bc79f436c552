"""ConvS2S in float64 NumPy, from the equations of Gehring et al. (2017), sections 3.1-3.4, and of its original code.

A reference to test against: it favors being obviously right over being fast. One sentence pair at a time, without its
padding, and one position at a time; no dropout, no autograd, no torch. `weights` are the model's by their names in its
state dict.
"""

import numpy as np


IGNORED = -100  # label of a position without a target
Weights = dict[str, np.ndarray]


def linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """W x + b, where row i of W is g_i v_i / |v_i|."""
    v, g = weights[f"{name}.direction"], weights[f"{name}.gain"]
    W = g[:, None] * v / np.sqrt((v * v).sum(axis=1, keepdims=True))
    return W @ x + weights[f"{name}.bias"]


def half_variance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum of two terms with the variance of one: section 3.4."""
    return (a + b) * np.sqrt(1 / 2)


def gated_convolution(h: np.ndarray, i: int, first: int, k: int, weights: Weights, name: str) -> np.ndarray:
    """GLU(W [h_first; ...; h_(first+k-1)] + b), counted from i and zero outside of the sentence: section 3.2."""
    window = [h[i + j] if 0 <= i + j < len(h) else np.zeros(h.shape[1]) for j in range(first, first + k)]
    a, c = np.split(linear(np.concatenate(window), weights, f"{name}.conv"), 2)
    return a * (1 / (1 + np.exp(-c)))


def residual(h_i: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """The layer's input; projected where the layer has another width."""
    return linear(h_i, weights, f"{name}.residual") if f"{name}.residual.bias" in weights else h_i


def embed(ids: np.ndarray, pad: int, matrix: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """e_i = E[x_i] + p_i, section 3.1; <pad> embeds as zero."""
    return np.stack([(matrix[x] if x != pad else 0 * matrix[x]) + positions[i] for i, x in enumerate(ids)])


def encode(source: np.ndarray, config, weights: Weights) -> tuple[np.ndarray, np.ndarray]:
    """Return z and z + e, of half the variance: section 3.2, and Eq. 2."""
    stack = "model.encoder"
    e = embed(
        source,
        config.pad_token_id,
        weights[f"{stack}.embed_tokens.weight"],
        weights[f"{stack}.embed_positions.weight"],
    )
    h = np.stack([linear(e_i, weights, f"{stack}.in_proj") for e_i in e])
    for n, k in enumerate(config.encoder_kernel_sizes):
        layer = f"{stack}.layers.{n}"
        h = np.stack(
            [
                half_variance(
                    gated_convolution(h, i, -(k // 2), k, weights, layer),
                    residual(h[i], weights, layer),
                )
                for i in range(len(h))
            ]
        )
    z = np.stack([linear(h_i, weights, f"{stack}.out_proj") for h_i in h])
    return z, half_variance(z, e)


def attend(h_i: np.ndarray, g_i: np.ndarray, z: np.ndarray, values: np.ndarray, weights: Weights, name: str):
    """h_i plus what attention finds, Eq. 1 and 2, times m sqrt(1/m): section 3.4."""
    d_i = half_variance(linear(h_i, weights, f"{name}.in_proj"), g_i)
    scores = np.array([d_i @ z_j for z_j in z])
    exponentials = np.exp(scores - scores.max())
    m = len(z)
    c_i = sum(a_ij * v_j for a_ij, v_j in zip(exponentials / exponentials.sum(), values, strict=True))
    return half_variance(linear(c_i * m * np.sqrt(1 / m), weights, f"{name}.out_proj"), h_i)


def decode(target: np.ndarray, z: np.ndarray, values: np.ndarray, config, weights: Weights) -> np.ndarray:
    """Return the (T, V) logits of shifted target ids: sections 3.2 and 3.3."""
    stack = "model.decoder"
    source_matrix = weights["model.encoder.embed_tokens.weight"]  # all three are one where they are tied
    matrix = weights.get(f"{stack}.embed_tokens.weight", source_matrix)
    g = embed(target, config.pad_token_id, matrix, weights[f"{stack}.embed_positions.weight"])
    h = np.stack([linear(g_i, weights, f"{stack}.in_proj") for g_i in g])
    for n, k in enumerate(config.decoder_kernel_sizes):
        layer = f"{stack}.layers.{n}"
        attended = [
            attend(
                gated_convolution(h, i, -(k - 1), k, weights, layer), g[i], z, values, weights, f"{layer}.encoder_attn"
            )
            for i in range(len(h))
        ]
        h = np.stack([half_variance(attended[i], residual(h[i], weights, layer)) for i in range(len(h))])
    output = np.stack([linear(h_i, weights, f"{stack}.out_proj") for h_i in h])
    return output @ weights.get("lm_head.weight", source_matrix).T + weights["lm_head.bias"]


def forward(
    weights: Weights, config, input_ids: np.ndarray, attention_mask: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the (B, T, V) logits and the mean cross-entropy over all real targets."""
    all_logits, loss = [], 0.0
    for source, mask, target in zip(input_ids, attention_mask, labels, strict=True):
        z, values = encode(source[mask == 1], config, weights)
        shifted = np.concatenate([[config.decoder_start_token_id], target[:-1]])
        logits = decode(np.where(shifted == IGNORED, config.pad_token_id, shifted), z, values, config, weights)
        for position in np.flatnonzero(target != IGNORED):
            scores = logits[position] - logits[position].max()
            loss -= scores[target[position]] - np.log(np.exp(scores).sum())
        all_logits.append(logits)
    return np.stack(all_logits), loss / (labels != IGNORED).sum()
