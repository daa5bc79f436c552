"""The recurrent encoder-decoder in float64 NumPy, one sentence, one position and one gate at a time.

A reference to test against, written from the equations: Hochreiter and Schmidhuber (1997) with forget gates, Cho et
al. (2014) with the reset gate of cuDNN, Luong et al. (2015) and Bahdanau et al. (2015). No torch, no autograd.
"""

import numpy as np


Weights = dict[str, np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm_cell(x: np.ndarray, state: tuple, W: np.ndarray, U: np.ndarray, b: np.ndarray, u: np.ndarray) -> tuple:
    """Input, forget, cell and output gate stand under each other in W, U, b and u."""
    h, c = state
    i, f, g, o = np.split(W @ x + b + U @ h + u, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_cell(x: np.ndarray, state: tuple, W: np.ndarray, U: np.ndarray, b: np.ndarray, u: np.ndarray) -> tuple:
    """Reset, update and new gate stand under each other."""
    (h,) = state
    (xr, xz, xn), (hr, hz, hn) = np.split(W @ x + b, 3), np.split(U @ h + u, 3)
    r, z = sigmoid(xr + hr), sigmoid(xz + hz)
    n = np.tanh(xn + r * hn)
    return ((1 - z) * n + z * h,)


def run(inputs: list, state: tuple, weights: Weights, prefix: str, cell, suffix: str = "") -> tuple[list, tuple]:
    """Return the output at each position, and the state after the last."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    W, U, b, u = (weights[f"{prefix}.rnn.{name}_l0{suffix}"] for name in names)
    outputs = []
    for x in inputs:
        state = cell(x, state, W, U, b, u)
        outputs.append(state[0])
    return outputs, state


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def score(s: np.ndarray, h: np.ndarray, weights: Weights, kind: str) -> float:
    if kind == "additive":
        W, U, v = (weights[f"model.decoder.attention.{name}_proj.weight"] for name in ("query", "key", "score"))
        return float(v[0] @ np.tanh(W @ s + U @ h))
    return float(s @ h) / (np.sqrt(len(s)) if kind == "scaled_dot" else 1.0)


def encode(source: list[int], weights: Weights, config) -> tuple[list, list]:
    """Return the encoder's states and, for each layer, the state in which it ends."""
    cell, parts = (lstm_cell, 2) if config.rnn_type == "lstm" else (gru_cell, 1)
    width = config.d_model // 2 if config.bidirectional else config.d_model
    zeros = (np.zeros(width),) * parts
    hidden = [weights["model.encoder.embed_tokens.weight"][token] for token in source]
    ends = []
    for layer in range(config.num_layers):
        name = f"model.encoder.layers.{layer}"
        outputs, end = run(hidden, zeros, weights, name, cell)
        if config.bidirectional:
            backward, other = run(hidden[::-1], zeros, weights, name, cell, "_reverse")
            outputs = [np.concatenate(pair) for pair in zip(outputs, backward[::-1], strict=True)]
            end = tuple(np.concatenate(pair) for pair in zip(end, other, strict=True))
        hidden = outputs
        ends.append(end)
    return hidden, ends


def log_probabilities(source: list[int], target: list[int], weights: Weights, config) -> np.ndarray:
    """Return log P of every type at each position of a target, (T, V); <pad> embeds as zero and starts the decoder."""
    cell = lstm_cell if config.rnn_type == "lstm" else gru_cell
    memory, ends = encode(source, weights, config)
    table = weights["model.decoder.embed_tokens.weight"].copy()
    table[config.pad_token_id] = 0
    hidden = [table[token] for token in [config.pad_token_id, *target[:-1]]]
    for layer in range(config.num_layers):
        hidden, _ = run(hidden, ends[layer], weights, f"model.decoder.layers.{layer}", cell)
    rows = []
    for s in hidden:
        if config.attention != "none":
            a = softmax(np.array([score(s, h, weights, config.attention) for h in memory]))
            c = sum(weight * h for weight, h in zip(a, memory, strict=True))
            W_c, b_c = weights["model.decoder.combine.weight"], weights["model.decoder.combine.bias"]
            s = np.tanh(W_c @ np.concatenate([c, s]) + b_c)
        rows.append(np.log(softmax(weights["lm_head.weight"] @ s + weights["lm_head.bias"])))
    return np.array(rows)


def mean_loss(pairs: list[tuple[list[int], list[int]]], weights: Weights, config) -> float:
    """Return the mean of -log P over all target tokens."""
    losses = [
        -row[token]
        for source, target in pairs
        for row, token in zip(log_probabilities(source, target, weights, config), target, strict=True)
    ]
    return float(np.mean(losses))
