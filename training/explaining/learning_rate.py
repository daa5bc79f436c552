"""The learning rate of section 5.3 (Eq. 3) as a picture."""

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from training.objective.schedule import learning_rate
from vaswani.pictures.look import DASHES, LIGHT, MATPLOTLIB, SERIES


UPDATES = range(1, 20_001)
CHOICES = {  # d_model and updates of warm-up
    (512, 4000): "width 512, warm-up of 4,000 updates: the paper's base model",
    (512, 8000): "width 512, warm-up of 8,000 updates: from there on the same rate",
    (256, 4000): "width 256, warm-up of 4,000 updates",
    (1024, 4000): "width 1,024, warm-up of 4,000 updates: the paper's big model",
}


@matplotlib.rc_context(MATPLOTLIB)
def draw() -> Figure:
    """Draw a line over the updates for each width and warm-up, with a mark on its peak."""
    figure = Figure(figsize=(8, 5.2), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    axes = figure.add_subplot()
    for ((d_model, warmup_steps), label), color, dash in zip(CHOICES.items(), SERIES, DASHES, strict=False):
        rates = [learning_rate(update, d_model, warmup_steps) for update in UPDATES]
        peak = rates.index(max(rates))
        style = {"color": LIGHT[color], "linestyle": dash, "marker": "o"}
        axes.plot(UPDATES, rates, **style, markevery=[peak], label=label)
    axes.set(
        title="Learning rate (section 5.3): it rises evenly through the warm-up,\n"
        "then falls with the inverse square root of the update",
        xlabel="update",
        ylabel="learning rate",
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    figure.legend(loc="outside lower center")
    return figure
