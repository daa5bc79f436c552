"""What is measured of the parsers of Table 4: by each search, beside the floors; kept, so that it is done once."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from training.tables.metrics import logged_evaluations
from training.tables.parsing.floors import measure_floors
from training.tables.sweep import Run
from vaswani.evaluation import encode_in_batches, evaluate
from vaswani.files import write_text
from vaswani.loading import load
from vaswani.models.legal_trees_vaswani import PARTS_OF_SPEECH
from vaswani.models.trees_vaswani import TREES, Tree, linearize
from vaswani.parsing.scores import score_trees
from vaswani.results import ParsingEvaluation
from vaswani.scoring.references import EvaluationSet


MAX_BATCH_TOKENS = 4096
# What a search may write: anything; trees over the words; of these, such as give each word a part of speech that the
# training trees have for it.
SEARCHES = FREE, TREES_ONLY, KNOWN_TAGS = "free", "trees only", "trees, known tags"


def as_text(split: str, trees: Sequence[Tree]) -> EvaluationSet:
    """Return trees as a text to evaluate on: their words, and their symbols."""
    words = [" ".join(word for word, _ in tree.leaves()) for tree in trees]
    return EvaluationSet("treebank", split, words, list(map(linearize, trees)))


def measure_parser(run: Run, text: EvaluationSet, search: str) -> ParsingEvaluation:
    """Evaluate the published model of a run by one of `SEARCHES`, unless that was done before.

    The run itself did it with `KNOWN_TAGS`: parsers are evaluated as they are used.
    """
    if search == KNOWN_TAGS:
        return ParsingEvaluation(**logged_evaluations(run.directory, text.split)[-1])
    path = run.directory / f"parses-{text.split}-{search.replace(' ', '-')}.json"
    if not path.exists():
        model, tokenizer = load(str(run.directory / "model"))
        tokenizer.init_kwargs.pop(PARTS_OF_SPEECH, None)
        batches = encode_in_batches(tokenizer, text, MAX_BATCH_TOKENS)
        evaluation, outputs = evaluate(model, tokenizer, text, batches, TREES, constrained=search != FREE)
        kept = {"evaluation": asdict(evaluation), "outputs": outputs}
        write_text(path, json.dumps(kept, ensure_ascii=False))
    return ParsingEvaluation(**json.loads(path.read_text(encoding="utf-8"))["evaluation"])


def floors(folder: Path, train: Sequence[Tree], split: str, gold: Sequence[Tree]) -> dict[str, ParsingEvaluation]:
    """Evaluate the floors on the sentences of a split, unless that was done before and is kept in the folder."""
    path = folder / f"floors-{split}.json"
    if not path.exists():
        found = measure_floors(train, [tree.leaves() for tree in gold])
        scores = {name: score_trees(gold, trees) for name, trees in found.items()}
        write_text(path, json.dumps(scores, ensure_ascii=False, indent=1))
    kept = json.loads(path.read_text(encoding="utf-8"))
    return {name: ParsingEvaluation(split=split, **scores) for name, scores in kept.items()}
