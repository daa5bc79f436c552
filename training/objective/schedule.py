"""The paper's learning rate (Eq. 3 of section 5.3), a pure function of the update."""


def learning_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """Linear warm-up, then decay with the inverse square root: d_model^-0.5 min(step^-0.5, step warmup_steps^-1.5).

    Parameters
    ----------
    step : int
        Optimizer update, counted from 1; processes and micro-batches do not count.
    d_model : int
        Model width.
    warmup_steps : int
        Updates of warm-up. The rate peaks at this update, at (d_model warmup_steps)^-0.5.

    Examples
    --------
    >>> round(learning_rate(4000, d_model=512, warmup_steps=4000), 6)
    0.000699
    """
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
