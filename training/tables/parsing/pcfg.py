"""A probabilistic context-free grammar read off a treebank, and the most likely tree by it: a floor for parsers.

NLTK makes the rules binary and undoes it; the most likely tree is found by CKY over arrays, as NLTK's own parsers take
minutes a sentence with so many rules.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from nltk import Tree as NltkTree

from vaswani.models.trees_vaswani import Tree
from vaswani.parsing.treebank import OUTER


RARE = 5  # words seen less often may have parts of speech that they were not seen with
UNARY, BAR = "+", "¦"  # joins the labels of unary chains; stands for "|", which NLTK gives a meaning


class Pcfg:
    """A grammar, its rules' probabilities the relative frequencies in a treebank.

    A word's part of speech has p(tag | word), smoothed by what words that look alike have (`signature`); so a word
    that was never seen is no obstacle.

    Parameters
    ----------
    trees : sequence of Tree
        Prepared ones.
    vertical : int, default=1
        Labels that make up a symbol: its own, and those of the `vertical` - 1 constituents above it.
    horizontal : int, default=2
        How many sisters a binary rule remembers.
    """

    def __init__(self, trees: Sequence[Tree], vertical: int = 1, horizontal: int = 2):
        binary: Counter[tuple[str, str, str]] = Counter()
        roots: Counter[str] = Counter()
        tagged: Counter[tuple[str, str]] = Counter()
        self.preterminals: dict[str, list[str]] = defaultdict(list)  # by part of speech
        for tree in trees:
            tagged.update(tree.leaves())
            binarized = binarize(tree, vertical, horizontal)
            roots[binarized.label()] += 1
            for rule in binarized.productions():
                if rule.is_lexical():
                    symbol = str(rule.lhs())
                    tag = tag_of(symbol)
                    self.preterminals[tag] += [symbol] * (symbol not in self.preterminals[tag])
                else:
                    binary[(str(rule.lhs()), *map(str, rule.rhs()))] += 1
        self._number_rules(binary, roots)
        self._count_words(tagged)

    def _number_rules(self, binary: Counter, roots: Counter) -> None:
        """Write the rules as arrays, those of one parent together."""
        known = {*roots, *(symbol for symbols in self.preterminals.values() for symbol in symbols)}
        self.symbols = sorted(known.union(*binary))
        self.numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        rules = sorted(tuple(self.numbers[symbol] for symbol in rule) for rule in binary)
        self.parents, self.lefts, self.rights = np.array(rules).T
        counts = np.array([binary[tuple(self.symbols[number] for number in rule)] for rule in rules], dtype=float)
        totals = np.bincount(self.parents, counts)
        self.log_rules = np.log(counts / totals[self.parents]).astype(np.float32)
        self.starts = np.flatnonzero(np.diff(self.parents, prepend=-1))
        self.with_rules = self.parents[self.starts]
        self.log_roots = np.full(len(self.symbols), -np.inf, dtype=np.float32)
        for symbol, count in roots.items():
            self.log_roots[self.numbers[symbol]] = np.log(count / sum(roots.values()))

    def _count_words(self, tagged: Counter) -> None:
        self.words: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()
        self.tags_of_word: dict[str, Counter[str]] = defaultdict(Counter)
        for (word, tag), count in tagged.items():
            self.words[word] += count
            self.tags[tag] += count
            self.tags_of_word[word][tag] += count
        self.tags_of_signature: dict[tuple, Counter[str]] = defaultdict(Counter)
        for (word, tag), count in tagged.items():
            if self.words[word] < RARE:
                for detail in range(3):
                    self.tags_of_signature[signature(word, detail)][tag] += count

    def tag_probabilities(self, word: str) -> dict[str, float]:
        """Return p(tag | word) of the tags that a word may have."""
        seen, count = self.tags_of_word.get(word, Counter()), self.words[word]
        if count >= RARE:
            return {tag: times / count for tag, times in seen.items()}
        alike = next(found for detail in range(3) if (found := self.tags_of_signature.get(signature(word, detail))))
        total = sum(alike.values())
        return {tag: (seen[tag] + alike[tag] / total) / (count + 1) for tag in alike | seen}

    def parse(self, words: Sequence[str], tags: Sequence[str] | None = None) -> Tree | None:
        """Return the most likely tree over words, whose parts of speech may be known; None if there is none."""
        size, total = len(words), sum(self.tags.values())
        chart = np.full((size + 1, size + 1, len(self.symbols)), -np.inf, dtype=np.float32)
        for place, word in enumerate(words):
            given = self.tag_probabilities(word) if tags is None else {tags[place]: 1.0}
            for tag, probability in given.items():
                # p(word | tag) is p(tag | word) / p(tag), times what is the same for all trees.
                score = np.log(probability * total / max(1, self.tags[tag]))
                for symbol in self.preterminals.get(tag, []):
                    chart[place, place + 1, self.numbers[symbol]] = score
        for width in range(2, size + 1):
            for start in range(size - width + 1):
                self._fill(chart, start, start + width)
        totals = chart[0, size] + self.log_roots
        if totals.max() == -np.inf:
            return None
        return unbinarize(self._trace(chart, 0, size, int(totals.argmax()), words))

    def _fill(self, chart: np.ndarray, start: int, end: int) -> None:
        """Find the best score of each symbol over a span from those of its parts."""
        lefts, rights = chart[start, start + 1 : end], chart[start + 1 : end, end]
        scores = (lefts[:, self.lefts] + rights[:, self.rights]).max(0) + self.log_rules
        chart[start, end, self.with_rules] = np.maximum.reduceat(scores, self.starts)

    def _trace(self, chart: np.ndarray, start: int, end: int, symbol: int, words: Sequence[str]) -> NltkTree:
        """Follow the best rules down from a symbol over a span."""
        if end - start == 1:
            return NltkTree(self.symbols[symbol], [words[start]])
        first, last = np.searchsorted(self.parents, [symbol, symbol + 1])
        lefts = chart[start, start + 1 : end][:, self.lefts[first:last]]
        rights = chart[start + 1 : end, end][:, self.rights[first:last]]
        scores = lefts + rights + self.log_rules[first:last]
        split, rule = np.unravel_index(scores.argmax(), scores.shape)
        middle = start + 1 + int(split)
        left, right = int(self.lefts[first + rule]), int(self.rights[first + rule])
        children = [self._trace(chart, start, middle, left, words), self._trace(chart, middle, end, right, words)]
        return NltkTree(self.symbols[symbol], children)


def binarize(tree: Tree, vertical: int, horizontal: int) -> NltkTree:
    """Return a tree in NLTK's Chomsky normal form, whose unary chains are one symbol each."""
    binarized = NltkTree.fromstring(f"(TOP {str(tree).replace('|', BAR)})")
    binarized.collapse_unary(collapsePOS=True, collapseRoot=True, joinChar=UNARY)
    binarized.chomsky_normal_form(horzMarkov=horizontal, vertMarkov=vertical - 1)
    return binarized


def unbinarize(tree: NltkTree) -> Tree:
    """Undo `binarize`."""
    tree.un_chomsky_normal_form(unaryChar=UNARY)
    whole = _from_nltk(tree)
    return whole.children[0] if whole.label in OUTER and isinstance(whole.children[0], Tree) else whole


def _from_nltk(tree: NltkTree) -> Tree:
    children = [child if isinstance(child, str) else _from_nltk(child) for child in tree]
    return Tree(tree.label().replace(BAR, "|"), children)


def tag_of(symbol: str) -> str:
    """Return the part of speech at the end of a unary chain."""
    return symbol.split("^")[0].split(UNARY)[-1].replace(BAR, "|")


def signature(word: str, detail: int) -> tuple:
    """Say how a word looks: digits, capital, hyphen and last letters; the less, the higher `detail` is."""
    looks = bool(re.search(r"\d", word)), word[:1].isupper(), "-" in word
    return (looks, word[-3:].lower())[: 2 - detail] if detail < 2 else ()
