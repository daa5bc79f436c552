"""What a finished system translates: kept beside its run, and timed."""

import json
import time
from dataclasses import asdict, dataclass

from training.tables.sweep import Run
from vaswani.evaluation import translate_all
from vaswani.files import write_text
from vaswani.loading import load
from vaswani.scoring.references import EvaluationSet


@dataclass(frozen=True)
class Decoding:
    """The translations of a text by one run, as its published model decodes by itself.

    Attributes
    ----------
    translations : list of str
    tokens : int
        Of all translations, ``</s>`` included.
    seconds : float
        Of all batches, without loading the model.
    """

    translations: list[str]
    tokens: int
    seconds: float


def decode(run: Run, text: EvaluationSet) -> Decoding:
    """Translate a text with the published model of a run, unless that was done before."""
    path = run.directory / f"decoding-{text.split}.json"
    if not path.exists():
        model, tokenizer = load(str(run.directory / "model"))
        started = time.perf_counter()
        translations = translate_all(model, tokenizer, text.sources or [])
        seconds = time.perf_counter() - started
        tokens = sum(map(len, tokenizer(translations, verbose=False).input_ids))
        write_text(path, json.dumps(asdict(Decoding(translations, tokens, round(seconds, 2)))))
    return Decoding(**json.loads(path.read_text(encoding="utf-8")))
