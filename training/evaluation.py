"""Judge a model, or translations that are there already, by the paper's protocol and by today's.

  python training/evaluation.py --model runs/demo/model --dataset_name grammar --split test
  python training/evaluation.py --model runs/mine/model --source my/test.en --reference my/test.de --num_beams 4
  python training/evaluation.py --hypothesis out.de --reference my/test.de --target_lang de --json
  python training/evaluation.py --hypothesis out.de --baseline_hypothesis old.de --reference my/test.de

The scores of the two protocols stand together and must not be compared with each other. With --model, the row also
goes to the run's metrics.jsonl and into the model card (--no_record keeps it out). With a baseline, paired tests say
whether the difference may be luck.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from training.data.preparation import encode
from training.judging import evaluate, translate_all
from training.recording import origin, record
from training.settings import TrainingSettings
from training.test_sets import TestSet, read_hypotheses, read_test_set, wrong_size
from vaswani.cli import Parser
from vaswani.cli.flags import add_decoding_flags, add_model_flags, at_least_one, decoding
from vaswani.errors import UserError
from vaswani.scoring.protocols import check_language, moses_languages, score, suspicions
from vaswani.scoring.significance import compare
from vaswani.translation import load


DEFAULT_LANGUAGE = "de"
UNLIMITED = 10**9


def main(arguments: list[str]) -> None:
    """Read, translate unless that is done, score, compare, record, print."""
    options = parse(arguments)
    disable_progress_bar()  # transformers' own, at loading
    loaded = None if options.model is None else load(options.model, options.tokenizer, options.device, options.dtype)
    languages = choose_languages(options, None if loaded is None else loaded[0].config)
    test_set = read_test_set(options.source, options.reference, languages, options.split, options.max_samples)
    for warning in filter(None, [wrong_size(test_set)]):
        print(f"warning: {warning}", file=sys.stderr)
    row: dict[str, Any] = {"split": test_set.split, "test_set": test_set.name, "target_lang": options.target_lang}
    if loaded is not None:
        scores, hypotheses = judge(loaded, test_set, options)
        row = origin(options.model) | row | scores
    else:
        hypotheses = read_hypotheses(options.hypothesis, test_set)
        for suspicion in suspicions(hypotheses, test_set.references):
            print(f"warning: {suspicion}", file=sys.stderr)
        row |= score(hypotheses, test_set.references, options.target_lang, options.lowercase)
    if options.output:
        Path(options.output).write_bytes("".join(f"{line}\n" for line in hypotheses).encode())
    baseline = read_baseline(test_set, options)
    if baseline is not None:
        row["comparison"] = compare(hypotheses, baseline, test_set.references, options.target_lang, options.lowercase)
    if loaded is not None and options.record:
        print(record(row, options.model), file=sys.stderr)
    show(row, options.json)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the flags.

    Raises
    ------
    UserError
        If one is unknown, has a value that is not allowed, or they do not go together.
    """
    parser = Parser(
        prog="training/evaluation.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to judge: one of these")
    what.add_argument("--model", metavar="DIR_OR_HUB_ID", help="a model, which translates the sources")
    what.add_argument("--hypothesis", metavar="FILE", help="translations, a sentence a line, as plain text")
    text = parser.add_argument_group("on which text: a dataset, or files of a sentence a line")
    text.add_argument("--dataset_name", help="a dataset of the Hub, a local folder in its layout, or 'grammar'")
    text.add_argument("--dataset_config_name", help="the dataset's configuration, such as 'de-en'")
    text.add_argument("--split", default="test", help="the dataset's split (default: test)")
    text.add_argument("--source", metavar="FILE", help="what to translate")
    text.add_argument("--reference", metavar="FILE", help="its translation by people")
    text.add_argument("--source_lang", help="language of the sources (default: the model's)")
    text.add_argument(
        "--target_lang",
        help="language of the references, for the dataset and for Moses' tokenizer: one of "
        f"{', '.join(moses_languages())} (default: the model's, or the ending of --reference, or {DEFAULT_LANGUAGE})",
    )
    text.add_argument("--max_samples", type=at_least_one, metavar="N", help="only the first N sentences")
    how = parser.add_argument_group("how")
    how.add_argument("--lowercase", action="store_true", help="score without regard to case, as is usual for Multi30k")
    how.add_argument("--baseline_hypothesis", metavar="FILE", help="translations to compare with")
    how.add_argument("--baseline_model", metavar="DIR_OR_HUB_ID", help="a model to compare with")
    add_decoding_flags(how)
    add_model_flags(how)
    out = parser.add_argument_group("what becomes of it")
    out.add_argument("--json", nargs="?", const="-", metavar="FILE", help="write JSON to FILE, or instead of the text")
    out.add_argument("--output", metavar="FILE", help="write the translations there")
    out.add_argument(
        "--no_record", dest="record", action="store_false", help="leave metrics.jsonl and the model card alone"
    )
    options = parser.parse_args(arguments)
    if (options.model is None) == (options.hypothesis is None):
        raise UserError("exactly one of model and hypothesis must be given: what is judged?")
    if options.baseline_hypothesis and options.baseline_model:
        raise UserError("at most one of baseline_hypothesis and baseline_model can be given")
    if options.source is None and options.reference and (options.model or options.baseline_model):
        raise UserError("source is missing: a model needs something to translate")
    return options


def choose_languages(options: argparse.Namespace, config: Any) -> TrainingSettings:
    """Complete the languages from the model's config or the names of files, and return them with the dataset.

    Raises
    ------
    UserError
        If Moses' tokenizer does not know the target language.
    """
    ending = Path(options.reference or "").suffix.removeprefix(".")
    guess = ending if ending in moses_languages() else DEFAULT_LANGUAGE
    options.source_lang = options.source_lang or getattr(config, "source_lang", None) or ""
    options.target_lang = options.target_lang or getattr(config, "target_lang", None) or guess
    try:
        check_language(options.target_lang)
    except ValueError as error:
        raise UserError(str(error)) from error
    return TrainingSettings(
        dataset_name=options.dataset_name,
        dataset_config_name=options.dataset_config_name,
        source_lang=options.source_lang,
        target_lang=options.target_lang,
    )


def judge(loaded: tuple, test_set: TestSet, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Evaluate a model on all pairs, however long: none is dropped but the empty ones, for the likelihood."""
    model, tokenizer = loaded
    text = test_set.as_dataset()
    limits = TrainingSettings(max_source_length=UNLIMITED, max_target_length=UNLIMITED, max_length_ratio=UNLIMITED)
    encoded, _ = encode(text, tokenizer, limits, test_set.split)
    longest = max(max(encoded["source_length"]), max(encoded["target_length"]))
    return evaluate(
        model,
        tokenizer,
        text,
        encoded,
        max(longest, options.max_batch_tokens),
        target_lang=options.target_lang,
        lowercase=options.lowercase,
        max_batch_tokens=options.max_batch_tokens,
        **decoding(options),
    )


def read_baseline(test_set: TestSet, options: argparse.Namespace) -> list[str] | None:
    """Return the translations to compare with, if there are any."""
    if options.baseline_hypothesis:
        return read_hypotheses(options.baseline_hypothesis, test_set)
    if options.baseline_model is None:
        return None
    model, tokenizer = load(options.baseline_model, None, options.device, options.dtype)
    sources = test_set.sources or []
    return translate_all(model, tokenizer, sources, max_batch_tokens=options.max_batch_tokens, **decoding(options))


def show(row: dict[str, Any], destination: str | None) -> None:
    """Print the row as text; as JSON to a file beside it, or alone to standard output."""
    if destination == "-":
        print(json.dumps(row, indent=1, ensure_ascii=False))
        return
    if destination is not None:
        Path(destination).write_text(json.dumps(row, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(describe(row))


def describe(row: dict[str, Any]) -> str:
    """Say in words what was measured, each protocol by itself, and which tricks were on."""
    lines = [
        f"{row['test_set']}, {row['split']}: {row['sentences']:,} sentences, target language {row['target_lang']}",
        "",
        "Today's protocol",
        f"  BLEU, sacreBLEU               {row['sacrebleu']:6.2f}   {row['sacrebleu_signature']}",
        f"  BLEU, sacreBLEU, lowercased   {row['sacrebleu_lowercased']:6.2f}",
        f"  chrF                          {row['chrf']:6.2f}",
        "The paper's protocol, not to be compared with the above",
        f"  BLEU, compounds split         {row['paper_bleu']:6.2f}   {row['paper_bleu_signature']}",
        f"  BLEU, compounds whole         {row['paper_bleu_without_split']:6.2f}",
        f"Equal to their reference        {row['exact_match']:6.2f}%",
    ]
    on = ["quotes made straight and compounds split, in the paper's protocol alone"]
    if "nll" in row:
        lines.append(f"Perplexity of a word piece      {row['perplexity']:6.2f}   nll {row['nll']}, unsmoothed")
        averaged = row["averaged_checkpoints"]
        weights = "not known to be averaged" if averaged is None else f"average of {averaged} checkpoint(s)"
        on = [f"{row['decoding']} (weights: {row['checkpoint']}, {weights})", *on]
    lines.append(f"Tricks on: {'; '.join(on)}")
    for name, result in row.get("comparison", {}).items():
        lines += ["", f"Against the baseline, {name}: {result['difference']:+.2f}"]
        for system in ("system", "baseline"):
            interval = f"{result[f'{system}_mean']:.2f} +- {result[f'{system}_confidence']:.2f} (95%)"
            lines.append(f"  {system:8}  {result[system]:6.2f}, bootstrap {interval}")
        lines.append(
            f"  p = {result['bootstrap_p_value']:.4f} by paired bootstrap, "
            f"{result['randomization_p_value']:.4f} by approximate randomization"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
