"""The systems of Table 2: those that can be trained here, and what the paper prints of others."""

from dataclasses import dataclass

from training.recipe import parse_settings
from training.settings import ROOT, TrainingSettings
from training.trainer.model import load_config
from vaswani.models.configuration_vaswani import TranslatorConfig


@dataclass(frozen=True)
class System:
    """A system that can be trained.

    Parameters
    ----------
    name : str
    config_name : str
        Its folder in `hub_configs/`, and its recipe.
    text : str
        What it is, in a few words.
    """

    name: str
    config_name: str
    text: str

    @property
    def config(self) -> TranslatorConfig:
        """Its model, before it is scaled."""
        return load_config(self.config_name)

    def arguments(self) -> list[str]:
        """Return the arguments of run.py that train it."""
        return [str(ROOT / "training" / "recipes" / f"{self.config_name}.toml")]

    @property
    def average_checkpoints(self) -> int:
        """How many its recipe averages."""
        return parse_settings(self.arguments()).run.average_checkpoints

    def settings(self, *flags: str) -> TrainingSettings:
        """Read its recipe, over which flags win, without averaging: it is not known yet what there will be."""
        return parse_settings([*self.arguments(), "--average_checkpoints=1", *flags])


SYSTEMS = {
    system.name: system
    for system in (
        System("recurrent", "recurrent-en-de", "LSTM, one vector from encoder to decoder"),
        System("recurrent-attention", "recurrent-attention-en-de", "LSTM with attention"),
        System("convolutional", "convolutional-en-de", "ConvS2S"),
        System("transformer", "base-en-de", "Transformer (base)"),
    )
}
BASELINE = "transformer"


@dataclass(frozen=True)
class PaperRow:
    """A row of Table 2 as the paper prints it: BLEU on newstest2014 and training FLOPs; None where it is blank."""

    name: str
    bleu_en_de: float | None
    bleu_en_fr: float | None
    flops_en_de: float | None
    flops_en_fr: float | None


PAPER_ROWS = (
    PaperRow("ByteNet", 23.75, None, None, None),
    PaperRow("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    PaperRow("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    PaperRow("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    PaperRow("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    PaperRow("Deep-Att + PosUnk, ensemble", None, 40.4, None, 8.0e20),
    PaperRow("GNMT + RL, ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    PaperRow("ConvS2S, ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    PaperRow("Transformer (base)", 27.3, 38.1, 3.3e18, 3.3e18),
    PaperRow("Transformer (big)", 28.4, 41.8, 2.3e19, 2.3e19),
)
