"""Label smoothing (section 5.4) as a picture: the distribution that the loss aims at, and the loss."""

from collections.abc import Iterable

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from training.objective.loss import label_smoothed_sums
from vaswani.pictures.look import LIGHT, MATPLOTLIB


VOCABULARY = ("the", "cat", "sat", "on", "mat", "dog")
LABEL = VOCABULARY.index("mat")
PROBABILITIES = 1 - np.logspace(-4, 0, 401)[:-1]  # of the label
SMOOTHINGS = {0.0: ("orange", "without smoothing"), 0.1: ("blue", "smoothing of 0.1, as in the paper")}


def target_distribution(label_smoothing: float) -> np.ndarray:
    """Return the distribution of (V,) at which the loss is least.

    Notes
    -----
    The gradient of a cross-entropy with regard to the logits is the softmax minus the target distribution.
    """
    logits = torch.zeros(len(VOCABULARY), requires_grad=True)
    loss = label_smoothed_sums(logits, torch.tensor(LABEL), label_smoothing).loss
    [gradient] = torch.autograd.grad(loss, logits)
    return (logits.softmax(-1) - gradient).detach().numpy()


def losses(probabilities: Iterable[float], label_smoothing: float) -> list[float]:
    """Return the loss for each probability of the label, where the other types share the rest evenly."""
    label, found = torch.tensor(LABEL), []
    for probability in probabilities:
        distribution = torch.full((len(VOCABULARY),), (1 - probability) / (len(VOCABULARY) - 1))
        distribution[LABEL] = probability
        found.append(label_smoothed_sums(distribution.log(), label, label_smoothing).loss.item())
    return found


@matplotlib.rc_context(MATPLOTLIB)
def draw() -> Figure:
    """Draw the target distribution as bars, and the loss over the probability of the label."""
    figure = Figure(figsize=(11, 4.6), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.04))
    figure.suptitle("Label smoothing (section 5.4)", fontsize=14)
    left, right = figure.subplots(1, 2)
    draw_targets(left)
    draw_losses(right)
    return figure


def draw_targets(axes: Axes) -> None:
    """Draw the probability that each type should get, as bars with their values."""
    for (label_smoothing, (color, label)), shift in zip(SMOOTHINGS.items(), (-0.2, 0.2), strict=True):
        bars = axes.bar(
            np.arange(len(VOCABULARY)) + shift,
            target_distribution(label_smoothing),
            width=0.36,
            facecolor=LIGHT[color] if label_smoothing else LIGHT["paper"],
            edgecolor=LIGHT[color],
            linewidth=1.6,
            label=label,
        )
        axes.bar_label(bars, fmt="{:.2f}", padding=2, fontsize=9)
    axes.set_xticks(range(len(VOCABULARY)), VOCABULARY)
    axes.grid(visible=False, axis="x")
    axes.set(
        title=f"What the loss aims at, where “{VOCABULARY[LABEL]}” is the right word",
        xlabel="the whole vocabulary",
        ylabel="probability",
        ylim=(0, 1.3),
        yticks=np.linspace(0, 1, 6),
    )
    axes.legend(loc="upper left")


def draw_losses(axes: Axes) -> None:
    """Draw the loss over the probability of the label, with a mark on its minimum."""
    for (label_smoothing, (color, label)), dash in zip(SMOOTHINGS.items(), ("--", "-"), strict=True):
        found = losses(PROBABILITIES, label_smoothing)
        least = found.index(min(found))
        style = {"color": LIGHT[color], "linestyle": dash}
        axes.plot(PROBABILITIES, found, **style, label=label)
        if label_smoothing:
            axes.plot(PROBABILITIES[least], found[least], "o", color=LIGHT[color])
    axes.set_xscale("logit")
    axes.set_xticks((0.1, 0.5, 0.9, 0.99, 0.999), ("10%", "50%", "90%", "99%", "99.9%"))
    axes.minorticks_off()
    axes.set(
        title="With smoothing, being surer than 90% is punished",
        xlabel=f"probability of “{VOCABULARY[LABEL]}” (the other words share the rest evenly)",
        ylabel="loss (nats)",
    )
    axes.legend(loc="upper right")
