"""The rows of Table 3: the paper's figures, and config and recipe here."""

from dataclasses import dataclass

from training.recipe import parse_settings
from training.settings import ROOT, TrainingSettings
from training.trainer.model import load_config
from vaswani.models.configuration_vaswani import TranslatorConfig


@dataclass(frozen=True)
class Row:
    """A row of Table 3 as the paper prints it. Perplexity and BLEU are on newstest2013.

    Parameters
    ----------
    name : str
        Group and change; also that of its recipe and of its folder in `hub_configs/`, except for "base" and "big".
    perplexity : float
        Of a word piece, unsmoothed.
    bleu : float
    parameters : int, optional
        In millions, where it is printed.
    hours : float, optional
        Of training (section 5.2), for the two models whose cost Table 2 prints.
    """

    name: str
    perplexity: float
    bleu: float
    parameters: int | None = None
    hours: float | None = None

    @property
    def config_name(self) -> str:
        """Its folder in `hub_configs/`, and its recipe."""
        return f"{self.name}-en-de" if self.name in ("base", "big") else self.name

    @property
    def config(self) -> TranslatorConfig:
        """Its model, as in the paper."""
        return load_config(self.config_name)

    def settings(self, *flags: str) -> TrainingSettings:
        """Read its recipe, over which flags win."""
        return parse_settings([*self.arguments(), *flags])

    def arguments(self) -> list[str]:
        """Return the arguments of run.py that train it as the paper did: without averaging (section 6.2)."""
        recipe = ROOT / "training" / "recipes" / f"{self.config_name}.toml"
        return [str(recipe), "--average_checkpoints=1", "--save_total_limit=1"]


ROWS = {
    row.name: row
    for row in (
        Row("base", 4.92, 25.8, 65, hours=12),
        Row("A-h1", 5.29, 24.9),
        Row("A-h4", 5.00, 25.5),
        Row("A-h16", 4.91, 25.8),
        Row("A-h32", 5.01, 25.4),
        Row("B-k16", 5.16, 25.1, 58),
        Row("B-k32", 5.01, 25.4, 60),
        Row("C-N2", 6.11, 23.7, 36),
        Row("C-N4", 5.19, 25.3, 50),
        Row("C-N8", 4.88, 25.5, 80),
        Row("C-d256", 5.75, 24.5, 28),
        Row("C-d1024", 4.66, 26.0, 168),
        Row("C-ff1024", 5.12, 25.4, 53),
        Row("C-ff4096", 4.75, 26.2, 90),
        Row("D-drop0.0", 5.77, 24.6),
        Row("D-drop0.2", 4.95, 25.5),
        Row("D-ls0.0", 4.67, 25.3),
        Row("D-ls0.2", 5.47, 25.7),
        Row("E-learned", 4.92, 25.7),
        Row("big", 4.33, 26.4, 213, hours=84),
    )
}

# The rows in which the paper varies one thing, in ascending order of it. Rows are compared within a series only.
SERIES = {
    "heads (A)": ("A-h1", "A-h4", "base", "A-h16", "A-h32"),
    "width of keys (B)": ("B-k16", "B-k32", "base"),
    "layers (C)": ("C-N2", "C-N4", "base", "C-N8"),
    "d_model (C)": ("C-d256", "base", "C-d1024"),
    "d_ff (C)": ("C-ff1024", "base", "C-ff4096"),
    "dropout (D)": ("D-drop0.0", "base", "D-drop0.2"),
    "label smoothing (D)": ("D-ls0.0", "base", "D-ls0.2"),
    "positions (E)": ("base", "E-learned"),
    "base and big": ("base", "big"),
}
