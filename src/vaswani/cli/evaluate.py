"""Score a model, or translations that exist already, by the paper's protocol and by today's.

  vaswani evaluate --model runs/mine/model --source my/test.en --reference my/test.de --num_beams 4
  vaswani evaluate --model me/my-model --dataset_name wmt/wmt14 --dataset_config_name de-en --split test
  vaswani evaluate --hypothesis out.de --reference my/test.de --target_lang de --json
  vaswani evaluate --hypothesis out.de --baseline_hypothesis old.de --reference my/test.de
  vaswani evaluate --hypothesis out.tok.de --reference test.tok.de --tokenized
  vaswani evaluate --model runs/parser-small/model --dataset_name treebank:my/treebank --split test
  vaswani evaluate --hypothesis parsed.mrg --reference gold.mrg --target_lang tree

The scores of the two protocols stand together and must not be compared with each other. With --model, the row also
goes to the run's metrics.jsonl and into the model card (--no_record keeps it out). With a baseline, paired tests say
whether the difference may be luck.

Parses are scored as EVALB scores them with COLLINS.prm. Their files hold bracketed trees.
"""

import argparse
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from vaswani.errors import UserError
from vaswani.evaluation import check_is_scored, encode_in_batches, evaluate, judge, translate_all
from vaswani.memory import Forecast
from vaswani.models.generation_vaswani import max_positions
from vaswani.models.trees_vaswani import TREES, linearize, restore
from vaswani.parsing.scores import score_trees
from vaswani.parsing.splits import load_split
from vaswani.parsing.treebank import read_trees
from vaswani.record import describe_weights, record
from vaswani.results import Evaluation, ParsingEvaluation, TranslationEvaluation
from vaswani.scoring import references
from vaswani.scoring.protocols import check_language, moses_languages, suspicions
from vaswani.scoring.references import EvaluationSet, ReadSplit, as_many, read_hypotheses, wrong_size
from vaswani.scoring.significance import compare
from vaswani.shortlists.shortlist import Shortlist
from vaswani.text.decompression import name_within
from vaswani.text.headers import is_language_code
from vaswani.text.parallel import check_sides
from vaswani.workers import choose_workers, describe_workers

from .evaluate_flags import (
    DEFAULT_LANGUAGE,
    add_flags,
    check,
    check_has_source,
    check_is_plain,
    fill_in_defaults,
    is_treebank,
)
from .evaluate_report import report
from .shared.flags import decoding
from .shared.loading import load_model
from .shared.outputs import write_output


__all__ = ["add_flags", "run"]


def run(options: argparse.Namespace, read_split: ReadSplit = load_split) -> int:
    """Read, translate unless that is done, score, compare, record, print; `read_split` may know further datasets."""
    check(options)
    fill_in_defaults(options)
    disable_progress_bar()  # transformers' own, at loading
    loaded = None if options.model is None else load_model(options)
    other = None if options.baseline_model is None else load_baseline(options)
    choose_languages(options, None if loaded is None else loaded[0].config)
    text = read_text(options, read_split)
    warn(wrong_size(text))
    baseline = read_baseline(text, options)
    if loaded is None:
        evaluation, hypotheses = judge_file(text, options)
    else:
        evaluation, hypotheses = evaluate_model(*loaded, text, options)
        evaluation = replace(evaluation, **describe_weights(options.model))
    evaluation = replace(evaluation, test_set=text.name, target_lang=options.target_lang)
    failed: list[str] = []  # from here on, what fails keeps nothing else from being done
    with noting(failed):
        write_translations(hypotheses, text, options)
    with noting(failed):
        if other is not None:
            baseline = translate_baseline(*other, text, options)
    if baseline is not None:
        assert isinstance(evaluation, TranslationEvaluation)
        how = options.scored_as, options.lowercase, options.tokenized
        evaluation = replace(evaluation, comparison=compare(hypotheses, baseline, text.references, *how))
    publish(evaluation, options, failed)
    if failed:
        raise UserError("; ".join(failed))
    return 0


@contextmanager
def noting(failed: list[str]) -> Generator[None, None, None]:
    """Note what fails in a block, and continue after it."""
    try:
        yield
    except UserError as error:
        failed.append(str(error))


def warn(*sentences: str | None) -> None:
    """Print warnings, where there is something to warn of, apart from the scores."""
    for sentence in filter(None, sentences):
        print(f"warning: {sentence}", file=sys.stderr)


def read_text(options: argparse.Namespace, read_split: ReadSplit) -> EvaluationSet:
    """Read the files, or the split of the dataset, to evaluate on."""
    if options.reference is not None and options.target_lang == TREES:
        trees = list(read_trees(options.reference))[: options.max_samples]
        sources = [" ".join(word for word, _ in tree.leaves()) for tree in trees]
        return EvaluationSet(Path(options.reference).name, "test", sources, list(map(linearize, trees)))
    if options.reference is not None:
        return references.read_files(options.source, options.reference, options.max_samples)
    languages = options.source_lang, options.target_lang
    return references.read_dataset(
        options.dataset_name, options.dataset_config_name, options.split, languages, options.max_samples, read_split
    )


def choose_languages(options: argparse.Namespace, config: Any) -> None:
    """Complete the languages from the model's config or the names of files.

    `options.scored_as` is the target language where Moses' tokenizer knows it, and else None: then the paper's BLEU is
    left out.

    Raises
    ------
    UserError
        If a target language for files is no code, the model or its source is missing, or files are of the wrong sides.
    """
    ending = Path(name_within(options.reference or "")).suffix.removeprefix(".")
    guess = ending if is_language_code(ending) else DEFAULT_LANGUAGE
    options.source_lang = options.source_lang or getattr(config, "source_lang", None) or ""
    guess = TREES if is_treebank(options) or ending == "mrg" else guess
    given, own = options.target_lang, getattr(config, "target_lang", None)
    options.target_lang = options.scored_as = given or own or guess
    if config is not None and options.source is not None:
        check_sides([options.source, options.reference], (getattr(config, "source_lang", None), own))
    if options.target_lang == TREES:
        check_is_plain(options)
        if config is not None and own != TREES:
            raise UserError(f"model={options.model!r} must be a parser, whose target language is {TREES!r}")
        return
    if options.unconstrained:
        raise UserError(f"unconstrained is for parses, but target_lang={options.target_lang!r}")
    check_has_source(options)
    check_is_scored(options.target_lang, options.tokenized)
    if options.tokenized:
        return  # Moses has nothing to do
    try:
        check_language(options.target_lang)
    except ValueError as error:
        is_typed = given is not None and options.dataset_name is None and not is_language_code(given)
        if is_typed or not moses_languages():
            raise UserError(str(error)) from error
        options.scored_as = None
        warn(f"Moses' tokenizer does not know target_lang={options.target_lang!r}: the paper's BLEU is left out")


def evaluate_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: EvaluationSet, options: argparse.Namespace
) -> tuple[Evaluation, list[str]]:
    """Evaluate a model on all pairs, however long."""
    workers = announced_workers(model, options)
    shortlist = Shortlist.load(options.model, tokenizer).allowed if options.shortlist else None
    is_constrained = options.target_lang == TREES and not options.unconstrained
    if options.engine == "torch":
        forecast = Forecast(
            model, decoding(options), is_constrained=is_constrained, with_likelihood=True, workers=workers
        )
        warn(forecast.shortage(tokenizer, text.sources or [], options.max_batch_tokens))
    limit = model.config.max_position_embeddings if options.engine == "ctranslate2" else max_positions(model.config)
    return evaluate(
        model,
        tokenizer,
        text,
        encode_in_batches(tokenizer, text, options.max_batch_tokens, limit, warn),
        target_lang=options.scored_as,
        lowercase=options.lowercase,
        tokenized=options.tokenized,
        max_batch_tokens=options.max_batch_tokens,
        constrained=not options.unconstrained,
        warn=warn,
        workers=workers,
        shortlist=shortlist,
        **decoding(options),
    )


def announced_workers(model: PreTrainedModel, options: argparse.Namespace) -> int:
    """Return the number of processes that translate with a model, and say who they are."""
    is_engine = hasattr(model, "engine")  # which shares out each batch by itself
    workers = 1 if is_engine else choose_workers(options.workers, model.device)
    who = str(model) if is_engine else describe_workers(workers, model)
    print(f"Translating with {who}", file=sys.stderr)
    return workers


def judge_file(text: EvaluationSet, options: argparse.Namespace) -> tuple[Evaluation, list[str]]:
    """Score what stands in a file: translations, or trees."""
    if options.target_lang != TREES:
        hypotheses = read_hypotheses(options.hypothesis, text, options.max_samples)
        warn(*suspicions(hypotheses, text.references, options.tokenized))
        how = options.scored_as, options.lowercase, options.tokenized
        return judge(text, hypotheses, *how), hypotheses
    trees = as_many(options.hypothesis, list(read_trees(options.hypothesis)), text, options.max_samples, "trees")
    pairs = zip(text.references, text.sources or [], strict=True)
    gold = [restore(symbols, words.split(), is_gold=True).tree for symbols, words in pairs]
    return ParsingEvaluation(split=text.split, **score_trees(gold, trees)), list(map(linearize, trees))


def as_trees(outputs: list[str], text: EvaluationSet) -> list[str]:
    """Write parses in brackets, repaired where they are no trees."""
    pairs = zip(outputs, text.sources or [], strict=True)
    return [str(restore(symbols, words.split()).tree) for symbols, words in pairs]


def read_baseline(text: EvaluationSet, options: argparse.Namespace) -> list[str] | None:
    """Return the translations to compare with, if they stand in a file."""
    if options.baseline_hypothesis is None:
        return None
    baseline = read_hypotheses(options.baseline_hypothesis, text, options.max_samples)
    warn(*(f"of the baseline: {each}" for each in suspicions(baseline, text.references, options.tokenized)))
    return baseline


def load_baseline(options: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model to compare with, by torch; --tokenizer is for it only where there is no other model."""
    tokenizer = options.tokenizer if options.model is None else None
    given = {"model": options.baseline_model, "tokenizer": tokenizer, "engine": "torch", "ensemble": None}
    return load_model(argparse.Namespace(**vars(options) | given))


def translate_baseline(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: EvaluationSet, options: argparse.Namespace
) -> list[str]:
    """Return the translations of the model to compare with."""
    arguments = {"max_batch_tokens": options.max_batch_tokens, "workers": announced_workers(model, options)}
    return translate_all(model, tokenizer, text.sources or [], **arguments, **decoding(options))


def write_translations(hypotheses: list[str], text: EvaluationSet, options: argparse.Namespace) -> None:
    """Write what was scored to --output, if that is given, a line each: a line feed within one becomes a space."""
    if options.output is not None:
        lines = hypotheses if options.target_lang != TREES else as_trees(hypotheses, text)
        write_output("output", options.output, "".join(line.replace("\n", " ") + "\n" for line in lines))


def publish(evaluation: Evaluation, options: argparse.Namespace, failed: list[str]) -> None:
    """Print an evaluation, as text or as JSON alone; write it as JSON to a file; record it. Note what fails."""
    row = json.dumps(evaluation.to_row(), indent=1, ensure_ascii=False)
    with noting(failed):
        print_scores(row if options.json == "-" else report(evaluation))
    with noting(failed):
        if options.json not in (None, "-"):
            write_output("json", options.json, row + "\n")
    with noting(failed):
        if options.model is not None and options.record and options.ensemble is None:  # no card is of several models
            print(record(evaluation, options.model), file=sys.stderr)


def print_scores(text: str) -> None:
    """Print to standard output, or where that cannot be, to standard error.

    Raises
    ------
    UserError
        If standard output takes no more, as on a full disk.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        print(text, file=sys.stderr)
        with suppress(OSError):
            sys.stdout.close()  # or Python tries again when it ends, and complains
        raise UserError(f"standard output cannot be written: {error.strerror}") from error
