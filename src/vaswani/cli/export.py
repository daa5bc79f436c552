"""Write a model as other libraries read it, and verify that it gives what ours gives.

  vaswani export --model runs/mine/model --format marian --output mine-marian
  vaswani export --model me/my-model --format ctranslate2 --quantization int8 --output mine-ct2
  vaswani export --model me/my-model --format onnx --output mine-onnx

marian: a folder that transformers alone loads as MarianMTModel, without code of ours. Its search is transformers'.
ctranslate2: a folder that ctranslate2.Translator opens; `vaswani translate --engine ctranslate2` translates with it.
onnx: two graphs for ONNX Runtime; `vaswani translate --engine onnxruntime` searches over them as over our model.

The exported model is compared with ours on 100 sentences, which --source should give: log-probabilities to 1e-4 and
greedy search token for token, but for one sentence in a hundred, which may hang on a rounding. Where they differ more
than that in float32, nothing is written. In other types, the share of equal translations is shown.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from vaswani.errors import UserError
from vaswani.files import check_is_new, new_folder
from vaswani.interop import ctranslate2, marian, onnx
from vaswani.interop.verification import SENTENCES, Agreement, compare, made_up_sentences
from vaswani.loading import load
from vaswani.models.modeling_vaswani import VaswaniForConditionalGeneration
from vaswani.models.trees_vaswani import TREES
from vaswani.text.parallel import read_lines
from vaswani.workers import usable_cores


BEAMS = 4


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the command."""
    parser.add_argument("--model", required=True, metavar="DIR_OR_HUB_ID", help="a published model")
    parser.add_argument("--format", required=True, choices=list(FORMATS), help="whose format")
    parser.add_argument("--output", required=True, metavar="DIR", type=Path, help="a folder that does not exist yet")
    parser.add_argument(
        "--quantization",
        choices=ctranslate2.QUANTIZATIONS,
        default="float32",
        help="the type of the weights: of ctranslate2 any, of onnx float32 or int8 (default: float32)",
    )
    parser.add_argument("--tokenizer", metavar="DIR_OR_HUB_ID", help="where the tokenizer is, if not in --model")
    parser.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, default=True, help="compare with our model (default: yes)"
    )
    parser.add_argument(
        "--source",
        metavar="FILE",
        help=f"sentences to compare on, a line each, of which the first {SENTENCES} count (default: those on which "
        "its run tested the model, where that is still in the run's folder, or words of the vocabulary at random)",
    )


def run(options: argparse.Namespace) -> int:
    """Load, write, verify, and say what was written."""
    disable_progress_bar()  # transformers' own, at loading and saving
    check(options)
    model, tokenizer = load(options.model, options.tokenizer, device="cpu", dtype="float32")
    if not isinstance(model, VaswaniForConditionalGeneration) or model.config.target_lang == TREES:
        raise UserError(f"model={options.model!r} must be a Transformer that translates: only that can be exported")
    chosen = FORMATS[options.format]
    text = verification_text(options, tokenizer)
    with new_folder(options.output) as folder:
        chosen.save(model, tokenizer, folder, options.quantization)
        if options.verify:
            say(f"Verifying on {len(text.sentences)} sentences of {text.name}")
            agreement = chosen.verify(model, tokenizer, folder, text)
            say(str(agreement))
            if options.quantization == "float32":
                agreement.check()
    size = sum(file.stat().st_size for file in options.output.iterdir())
    say(f"Wrote {options.output}, {size / 1e6:,.0f} MB")
    return 0


class Text(NamedTuple):
    """Sentences to compare on, their name, and translations by people, where there are some."""

    sentences: list[str]
    name: str
    references: list[str] | None = None


def verification_text(options: argparse.Namespace, tokenizer: Any) -> Text:
    """Return the sentences that the user names, or else of the run from which the model comes, or else made up.

    Raises
    ------
    UserError
        If there is none in the user's file.
    """
    if options.source is not None:
        sentences = [line for line in read_lines(options.source) if line.strip()][:SENTENCES]
        if not sentences:
            raise UserError(f"source={options.source!r} holds no sentence: it must have a line of text at least")
        return Text(sentences, options.source)
    run_folder = Path(options.model).resolve().parent
    for split in ("test", "validation"):
        sides = [run_folder / "outputs" / f"{split}.{side}.txt" for side in ("source", "reference")]
        if Path(options.model).is_dir() and all(side.is_file() for side in sides):
            sentences, references = (read_lines(str(side))[:SENTENCES] for side in sides)
            return Text(sentences, f"its run's {split} text", references)
    return Text(made_up_sentences(tokenizer), "random words")


def check(options: argparse.Namespace) -> None:
    """Refuse flags that do not go together, and an output that exists, before anything is loaded."""
    check_is_new(options.output)
    if options.source and not options.verify:
        raise UserError(f"source={options.source!r} is for verifying, but --no-verify is given")
    possible = FORMATS[options.format].quantizations
    if options.quantization not in possible:
        raise UserError(
            f"quantization={options.quantization!r} must be {' or '.join(map(repr, possible))} for the format "
            f"{options.format!r}"
        )
    if options.format == "ctranslate2" and options.verify:
        possible = ctranslate2.supported_types("cpu")
        if options.quantization not in possible:
            raise UserError(
                f"quantization={options.quantization!r} must be one of {', '.join(possible)}, in which CTranslate2 "
                "computes on this CPU; --no-verify writes any"
            )


def verify_marian(model: Any, tokenizer: Any, folder: Path, text: Text) -> Agreement:
    """Compare what transformers alone makes of the folder."""
    theirs = AutoModelForSeq2SeqLM.from_pretrained(folder)
    theirs.generation_config.max_length = None  # a warning would tell at each batch that it counts for nothing here
    model.generation_config.do_sample = theirs.generation_config.do_sample = False  # samples tell nothing
    stock = {"num_beams": BEAMS, "length_penalty": theirs.generation_config.length_penalty}
    searches = {
        f"its beam {BEAMS}": (stock, stock),
        f"its beam {BEAMS} and the paper's": ({"num_beams": BEAMS}, stock),
    }
    their_tokenizer = AutoTokenizer.from_pretrained(folder)
    if their_tokenizer(text.sentences).input_ids != tokenizer(text.sentences).input_ids:
        raise UserError("the exported tokenizer does not give the same tokens: nothing was written")
    exact = (f"its beam {BEAMS}",)
    return compare(model, tokenizer, theirs, text.sentences, searches, text.references, exact)


def verify_ctranslate2(model: Any, tokenizer: Any, folder: Path, text: Text) -> Agreement:
    """Compare what CTranslate2 makes of the folder, its hypotheses ranked as the paper ranks."""
    theirs = ctranslate2.CTranslate2Model(folder, threads=usable_cores())
    paper = {"num_beams": BEAMS}
    searches = {f"beam {BEAMS}, ranked as in the paper": (paper, paper)}
    return compare(model, tokenizer, theirs, text.sentences, searches, text.references)


def verify_onnx(model: Any, tokenizer: Any, folder: Path, text: Text) -> Agreement:
    """Compare what ONNX Runtime makes of the graphs."""
    theirs = onnx.OnnxModel(folder, usable_cores())
    search, paper = f"beam {BEAMS}", {"num_beams": BEAMS}
    searches = {search: (paper, paper)}
    return compare(model, tokenizer, theirs, text.sentences, searches, text.references, exact=(search,))


def say(sentence: str) -> None:
    """Tell the user."""
    print(sentence, file=sys.stderr)


class Format(NamedTuple):
    """What writes a folder of a model, what compares the two, and the types that weights may have in it."""

    save: Callable[[Any, Any, Path, str], None]
    verify: Callable[[Any, Any, Path, Text], Agreement]
    quantizations: tuple[str, ...]


FORMATS = {
    "marian": Format(marian.save_as_marian, verify_marian, marian.QUANTIZATIONS),
    "ctranslate2": Format(ctranslate2.save_for_ctranslate2, verify_ctranslate2, ctranslate2.QUANTIZATIONS),
    "onnx": Format(onnx.save_for_onnx, verify_onnx, onnx.QUANTIZATIONS),
}
