"""Turn a model of another library into one of ours, and verify that it gives what that gives.

  vaswani import --from marian --model Helsinki-NLP/opus-mt-en-de --output opus
  vaswani import --from fsmt --model facebook/wmt19-en-de --output wmt19
  vaswani import --from t2t-names --model t2t_train/base --target_space_id 0 --output base

marian: MarianMT of transformers, such as OPUS-MT's models. fsmt: fairseq's models of WMT in transformers. Both may be
folders or on the Hub. t2t-names: a folder of tensor2tensor with hparams.json and either a checkpoint, for which
TensorFlow must be installed, or variables.npz, which has the same variables by the same names. What our Transformer
cannot be is refused by name.

The tokenizer is carried over as it is, and needs the packages that it needs there (sentencepiece, sacremoses);
tensor2tensor's has no form in transformers, so that such a model comes without one and is not verified. What was
imported can be trained on (`--model_name_or_path`), decoded as in the paper, and exported again.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from vaswani.errors import UserError, first_line
from vaswani.files import check_is_new, new_folder
from vaswani.interop.fsmt import from_fsmt
from vaswani.interop.marian import from_marian
from vaswani.interop.t2t import load_t2t
from vaswani.interop.verification import SENTENCES, compare, made_up_sentences
from vaswani.loading import load_whole_model
from vaswani.models.decoding_vaswani import PAPERS_DECODING
from vaswani.models.pipeline_vaswani import tokenizer_problem


FORMATS = {"marian": from_marian, "fsmt": from_fsmt}
T2T = "t2t-names"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the command."""
    parser.add_argument("--from", required=True, choices=[*FORMATS, T2T], dest="format", help="whose model it is")
    parser.add_argument("--model", required=True, metavar="DIR_OR_HUB_ID", help="the model")
    parser.add_argument(
        "--target_space_id",
        metavar="N",
        type=int,
        help="t2t-names: the row of target_space_embedding with which the model was trained",
    )
    parser.add_argument("--output", required=True, metavar="DIR", type=Path, help="a folder that does not exist yet")
    parser.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, default=True, help="compare both models (default: yes)"
    )


def run(options: argparse.Namespace) -> int:
    """Load, convert, verify, and say what was written."""
    disable_progress_bar()  # transformers' own, at loading and saving
    check_is_new(options.output)
    if options.format == T2T:
        theirs, ours = None, load_t2t(Path(options.model), options.target_space_id)
        tokenizer, missing = None, "tensor2tensor's has no form in transformers"
    else:
        theirs = load_theirs(options)
        ours = FORMATS[options.format](theirs)
        tokenizer, missing = load_tokenizer(options.model)
    if tokenizer is not None:
        fit(ours, tokenizer, options.model)
    for name, value in PAPERS_DECODING.items():
        setattr(ours.generation_config, name, value)
    with new_folder(options.output) as folder:
        if options.verify and tokenizer is not None:
            verify(ours, tokenizer, theirs)
        ours.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    say(f"Wrote {options.output}, {ours.num_parameters():,} weights")
    if missing:
        say(f"warning: the tokenizer was not carried over, and nothing verified: {missing}")
    return 0


def verify(ours: Any, tokenizer: PreTrainedTokenizerBase, theirs: Any) -> None:
    """Compare our model with theirs, and say how far they agree.

    Raises
    ------
    UserError
        If they differ by more than rounding.
    """
    say(f"Verifying on {SENTENCES} sentences of random words")
    # Ours rules <pad> out, and may end without </s>.
    theirs.generation_config.max_length = None  # a warning would tell at each batch that it counts for nothing
    theirs.generation_config.update(suppress_tokens=[ours.config.pad_token_id], forced_eos_token_id=None)
    agreement = compare(ours, tokenizer, theirs, made_up_sentences(tokenizer), {})
    say(str(agreement))
    agreement.check()


def load_theirs(options: argparse.Namespace) -> Any:
    """Load the model with transformers.

    Raises
    ------
    UserError
        If there is none, a file of it is broken, weights are missing, or it is of another architecture.
    """
    if options.target_space_id is not None:
        raise UserError(f"target_space_id={options.target_space_id} is for --from {T2T} alone")
    theirs = load_whole_model(options.model, dtype="float32")
    if theirs.config.model_type != options.format:
        raise UserError(
            f"model={options.model!r} is a {theirs.config.model_type!r} model, but --from says {options.format!r}"
        )
    return theirs.eval()


def load_tokenizer(name: str) -> tuple[PreTrainedTokenizerBase | None, str]:
    """Load the tokenizer, or say in a sentence why it cannot be."""
    try:
        return AutoTokenizer.from_pretrained(name), ""
    except Exception as error:  # depending on what is missing, the library raises half a dozen kinds
        return None, first_line(error)


def fit(ours: Any, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Note the tokenizer's languages in the model's config, where it has some, and the model's end in the tokenizer.

    Raises
    ------
    UserError
        If its vocabulary is not the model's.
    """
    problem = tokenizer_problem(ours, tokenizer)
    if problem is not None:
        raise UserError(f"model={name!r} {problem}")
    for field in ("source_lang", "target_lang"):
        setattr(ours.config, field, getattr(ours.config, field) or getattr(tokenizer, field, None))
    if tokenizer.eos_token is None:  # FSMT's calls it a separator
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ours.config.eos_token_id)


def say(sentence: str) -> None:
    """Tell the user."""
    print(sentence, file=sys.stderr)
