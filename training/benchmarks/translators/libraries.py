"""CTranslate2, with the settings that its documentation advises for speed."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import MarianMTModel, PreTrainedTokenizerFast

from training.benchmarks.translators.work import Contender, Setup, Work


TYPES = {"fp32": "float32", "int8": "int8"}


def has_ctranslate2() -> bool:
    """Tell whether CTranslate2 is installed."""
    return find_spec("ctranslate2") is not None


def ctranslate2(precision: str, setting: str, setup: Setup, folder: Path) -> list[Contender]:
    """Return CTranslate2's contenders in one setting, in int8 and the faster setting also with its vocabulary map.

    Parameters
    ----------
    precision : str
        "fp32" or "int8".
    setting : str
        `setup.threads`: all cores do one batch (`intra_threads`); or `setup.workers`: each does a batch of its own
        (`inter_threads`), as its documentation advises.
    setup : Setup
    folder : Path
        Where `convert` has put the model.
    """
    inter, intra = (setup.cores, 1) if setting == setup.workers else (1, setup.cores)
    threads = {} if setup.device == "cuda" else {"inter_threads": inter, "intra_threads": intra}
    library = import_module("ctranslate2")
    translator = library.Translator(str(folder / "ct2"), device=setup.device, compute_type=TYPES[precision], **threads)
    contenders = []
    for beams in (1, setup.beams):
        translate = partial(translate_all, translator, setup.work, beam_size=beams)
        contenders.append(Contender("CTranslate2", precision, setting, beams, translate))
        if precision == "int8" and setting == (setup.workers or setup.threads):
            with_map = partial(translate, use_vmap=True)
            contenders.append(Contender("CTranslate2, vmap", precision, setting, beams, with_map, is_cut=True))
    return contenders


def translate_all(translator: Any, work: Work, **settings: Any) -> None:
    """Hand all sentences over at once; the library sorts them by length, and cuts them into the same batches."""
    sources = [
        [f"w{token}" for token in row[: int(length)]]
        for ids, mask in work.batches
        for row, length in zip(ids.tolist(), mask.sum(1), strict=True)
    ]
    exactly = {"min_decoding_length": work.new_tokens, "max_decoding_length": work.new_tokens}
    results = translator.translate_batch(sources, max_batch_size=len(work.batches[0][0]), **exactly, **settings)
    work.check([result.hypotheses[0] for result in results], len(sources))


def convert(marian: MarianMTModel, shortlist: Sequence[int], folder: Path) -> None:
    """Convert MarianMT and a vocabulary of made-up words to ``ct2`` in a folder."""
    size = marian.config.vocab_size
    vocabulary = {"</s>": 0} | {f"w{token}": token for token in range(1, size - 1)} | {"<pad>": size - 1}
    words = Tokenizer(WordLevel(vocabulary, unk_token="w1"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="<pad>", unk_token="w1")
    marian.save_pretrained(folder / "marian")
    tokenizer.save_pretrained(folder / "marian")
    tokens = {token: word for word, token in vocabulary.items()}
    always = " ".join(tokens[token] for token in shortlist)  # what follows no word is for every source
    (folder / "map.txt").write_text(f"\t{always}\n", encoding="utf-8")
    converters = import_module("ctranslate2.converters")
    converter = converters.TransformersConverter(str(folder / "marian"))
    converter.convert(str(folder / "ct2"), vmap=str(folder / "map.txt"), quantization=None)
