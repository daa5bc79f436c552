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

from training.benchmarks.translators.work import Contender, Work


TYPES = {"fp32": "float32", "int8": "int8"}


def has_ctranslate2() -> bool:
    """Tell whether CTranslate2 is installed."""
    return find_spec("ctranslate2") is not None


def ctranslate2_contenders(
    marian: MarianMTModel, work: Work, beams: int, device: str, shortlist: Sequence[int], cores: int, folder: Path
) -> list[Contender]:
    """Return CTranslate2's contenders, which translate by the same weights.

    Parameters
    ----------
    marian : MarianMTModel
        What is converted.
    work : Work
    beams : int
        Hypotheses of the beam search; all search greedily too.
    device : str
        "cpu" or "cuda".
    shortlist : sequence of int
        The tokens of its vocabulary map, which it considers instead of all.
    cores : int
        All are used: by several threads for one batch (`intra_threads`), or, as its documentation advises, by as many
        workers (`inter_threads`), to which it hands a batch each; in float32 in the latter way only.
    folder : Path
        For the converted model.
    """
    library = import_module("ctranslate2")
    convert(marian, shortlist, folder)
    settings = {f"{cores} threads" if cores > 1 else "1 thread": {"inter_threads": 1, "intra_threads": cores}}
    if device == "cuda":
        settings = {"GPU": {}}
    elif cores > 1:
        settings[f"{cores} workers"] = {"inter_threads": cores, "intra_threads": 1}
    contenders = []
    for precision, kind in TYPES.items():
        for setting, threads in list(settings.items())[-1 if precision == "fp32" else 0 :]:
            translator = library.Translator(str(folder / "ct2"), device=device, compute_type=kind, **threads)
            for count in (1, beams):
                translate = partial(translate_all, translator, work, beam_size=count)
                contenders.append(Contender("CTranslate2", precision, setting, count, translate))
                if precision == "int8" and setting == list(settings)[-1]:
                    with_map = partial(translate, use_vmap=True)
                    contenders.append(Contender("CTranslate2, vmap", precision, setting, count, with_map, is_cut=True))
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
