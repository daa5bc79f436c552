"""What `vaswani evaluate` says of an evaluation, in words."""

import textwrap

from vaswani.results import Evaluation, ParsingEvaluation, TranslationEvaluation


WIDTH = 100  # columns of a terminal that are used


def report(evaluation: Evaluation) -> str:
    """Say in words what was measured, each protocol by itself, and which tricks were on."""
    if isinstance(evaluation, ParsingEvaluation):
        return report_parses(evaluation)
    assert isinstance(evaluation, TranslationEvaluation)
    lines = [
        f"{evaluation.test_set}, {evaluation.split}: {evaluation.sentences:,} sentences, target language "
        f"{evaluation.target_lang}",
        "",
        "Of tokens as they are" if "|tok:none|" in evaluation.sacrebleu_signature else "Today's protocol",
        f"  {evaluation.sacrebleu_signature}",
        f"  BLEU, sacreBLEU               {evaluation.sacrebleu:6.2f}",
        f"  BLEU, sacreBLEU, lowercased   {evaluation.sacrebleu_lowercased:6.2f}",
        f"  chrF                          {evaluation.chrf:6.2f}",
    ]
    on = []
    if evaluation.paper_bleu_signature:
        lines += [
            "The paper's protocol, not to be compared with the above",
            f"  {evaluation.paper_bleu_signature}",
            f"  BLEU, compounds split         {evaluation.paper_bleu:6.2f}",
            f"  BLEU, compounds whole         {evaluation.paper_bleu_without_split:6.2f}",
        ]
        on = ["quotes made straight and compounds split, in the paper's protocol alone"]
    lines.append(f"Equal to their reference        {evaluation.exact_match:6.2f}%")
    if evaluation.nll is not None:
        lines.append(
            f"Perplexity of a word piece      {evaluation.perplexity:6.2f}   nll {evaluation.nll}, unsmoothed"
        )
        averaged = evaluation.averaged_checkpoints
        weights = "not known to be averaged" if averaged is None else f"average of {averaged} checkpoint(s)"
        on = [f"{evaluation.decoding} (weights: {evaluation.checkpoint}, {weights})", *on]
    if on:
        lines.append(textwrap.fill(f"Tricks on: {'; '.join(on)}", WIDTH, subsequent_indent="  "))
    for name, result in (evaluation.comparison or {}).items():
        lines += ["", f"Against the baseline, {name}: {result['difference']:+.2f}", *comparison_lines(result)]
    return "\n".join(lines)


def comparison_lines(result: dict[str, float]) -> list[str]:
    """Say how sure the scores of two systems and their difference are."""
    lines = []
    for system in ("system", "baseline"):
        interval = f"{result[f'{system}_mean']:.2f} +- {result[f'{system}_confidence']:.2f} (95%)"
        lines.append(f"  {system:8}  {result[system]:6.2f}, bootstrap {interval}")
    p_value, by_randomization = result["bootstrap_p_value"], result["randomization_p_value"]
    return [
        *lines,
        f"  p = {p_value:.4f} by paired bootstrap, {by_randomization:.4f} by approximate randomization",
    ]


def report_parses(evaluation: ParsingEvaluation) -> str:
    """Say in words how well sentences were parsed."""
    lines = [
        f"{evaluation.test_set}, {evaluation.split}: {evaluation.sentences:,} trees",
        "",
        "By the rules of EVALB, with COLLINS.prm",
        f"  labelled F1                   {evaluation.bracketing_f1:6.2f}",
        f"  recall                        {evaluation.bracketing_recall:6.2f}",
        f"  precision                     {evaluation.bracketing_precision:6.2f}",
        f"  exact match                   {evaluation.exact_match:6.2f}%",
        f"  tagging accuracy              {evaluation.tagging_accuracy:6.2f}%",
        f"  crossing brackets             {evaluation.average_crossing:6.2f}   a sentence",
        f"  no crossing, two or less      {evaluation.no_crossing:6.2f}%, {evaluation.two_or_less_crossing:.2f}%",
        f"  errors, which count nowhere   {evaluation.evalb_errors:6d}",
    ]
    lines += [
        f"  F1 of {name + ' words':24}{group['bracketing_f1']:6.2f}   {group['sentences']:.0f} sentences"
        for name, group in evaluation.bracketing_f1_by_length.items()
    ]
    if evaluation.nll is not None:
        lines += [
            f"Well-formed before any repair   {evaluation.well_formed:6.2f}%",
            f"Perplexity of a symbol          {evaluation.perplexity:6.2f}   nll {evaluation.nll}, unsmoothed",
            textwrap.fill(
                f"Tricks on: {evaluation.decoding} (weights: {evaluation.checkpoint})", WIDTH, subsequent_indent="  "
            ),
        ]
    return "\n".join(lines)
