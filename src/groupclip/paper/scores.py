"""BLEU, NIST, METEOR, ROUGE-L and CIDEr of generated texts, by the conventions of the E2E challenge where they can be had.

The challenge's script (e2e-metrics) scores in two ways, and so does this file:

- BLEU and NIST on lower-cased mteval-13a tokens, NIST with n-grams up to 5 and all references at once. BLEU is sacrebleu's;
  NIST is worked out here, since NLTK's takes one best reference for each n instead of all of them.
- METEOR, ROUGE-L and CIDEr in COCO's way on tokens without punctuation. COCO splits words with Stanford's Java tokenizer;
  here it is mteval's again, which differs in contractions ("isn't"). ROUGE-L takes the largest precision and the largest
  recall over the references, beta = 1.2 (longest common subsequences by rouge-score). CIDEr is CIDEr-D times 10.

METEOR is the challenge's own program, version 1.5: see :mod:`groupclip.paper.meteor`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from .meteor import corpus_meteor, program
from .source import INSTALL, MissingSource, needed

METRICS = ("bleu", "nist", "meteor", "rouge_l", "cider")
Tokens = list[str]
References = Sequence[Sequence[Tokens]]


def unavailable() -> dict[str, str]:
    """Return the metrics that can't be computed here, and what to do about it."""
    found = {}
    for metric in METRICS:
        try:
            _requirements(metric)
        except MissingSource as error:
            found[metric] = str(error)
    return found


def require(metrics: Sequence[str]) -> None:
    """Raise ``MissingSource`` if one of the metrics can't be computed here, ``ValueError`` for an unknown one."""
    for metric in metrics:
        if metric not in METRICS:
            raise ValueError(f"unknown metric {metric!r}; metrics: {', '.join(METRICS)}")
        _requirements(metric)


def _requirements(metric: str) -> None:
    needed("sacrebleu", f"the metric {metric}", INSTALL)  # tokenizer of all
    if metric == "rouge_l":
        needed("rouge_score", "the metric rouge_l", INSTALL)
    if metric == "meteor":
        program()


def score(
    outputs: Sequence[str], references: Sequence[Sequence[str]], metrics: Sequence[str] = METRICS
) -> dict[str, float]:
    """Corpus scores in the units of the paper's tables: BLEU and ROUGE-L in percent, the others as they are.

    Args:
        outputs: one text an input.
        references: all texts that are right for the same input, one or more.
        metrics: which of ``METRICS``.

    Raises:
        ValueError: no output, different numbers, an input without reference, an unknown metric.
        MissingSource: a package or Java isn't here.
    """
    if not outputs or len(outputs) != len(references):
        raise ValueError(f"{len(outputs)} outputs for {len(references)} sets of references; one each, and at least one")
    if any(not texts for texts in references):
        raise ValueError("an input has no reference to compare its output with")
    require(metrics)
    made, right = [mteval(text) for text in outputs], [[mteval(text) for text in texts] for texts in references]
    words, right_words = [_words(t) for t in made], [[_words(t) for t in texts] for texts in right]
    compute = {
        "bleu": lambda: bleu(outputs, references),
        "nist": lambda: nist(made, right),
        "meteor": lambda: corpus_meteor(
            [" ".join(t) for t in words], [[" ".join(t) for t in texts] for texts in right_words]
        ),
        "rouge_l": lambda: 100 * rouge_l(words, right_words),
        "cider": lambda: cider(words, right_words),
    }
    return {metric: float(compute[metric]()) for metric in metrics}


def mteval(text: str) -> Tokens:
    """Return lower-cased tokens of mteval-v13a, as sacrebleu splits them."""
    tokenizer = needed("sacrebleu.tokenizers.tokenizer_13a", "the metrics", INSTALL).Tokenizer13a()
    return tokenizer(text).lower().split()


def _words(tokens: Tokens) -> Tokens:
    return [token for token in tokens if any(c.isalnum() for c in token)]


def bleu(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Corpus BLEU-4 in percent (Papineni et al. 2002), lower-cased, closest reference length, no smoothing."""
    library = needed("sacrebleu", "the metric bleu", INSTALL)
    most = max(map(len, references))
    streams = [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
    return library.corpus_bleu(list(outputs), streams, lowercase=True, tokenize="13a", smooth_method="none").score


def nist(outputs: Sequence[Tokens], references: References, most: int = 5) -> float:
    """NIST (Doddington 2002, equation 3) with the counts of mteval-13a.

    An n-gram weighs log2(count of its first n - 1 words / count of all of it), counts over all references; it is a hit as
    often as it is in the output, at most as often as in the reference that has it most. The score is the sum over n of hit
    weights per output n-gram, times exp(beta ln^2 min(1, output words / mean reference words)), 0.5 at a ratio of 2/3.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for texts in references:
        for text in texts:
            counts[()] += len(text)
            for n in range(1, most + 1):
                counts.update(_ngrams(text, n))
    total = 0.0
    for n in range(1, most + 1):
        hits, size = 0.0, 0
        for output, texts in zip(outputs, references, strict=True):
            here, there = _ngrams(output, n), Counter[tuple[str, ...]]()
            for text in texts:
                there |= _ngrams(text, n)
            size += sum(here.values())
            hits += sum(
                math.log2(counts[ngram[:-1]] / counts[ngram]) * min(count, there[ngram])
                for ngram, count in here.items()
                if there[ngram]
            )
        total += hits / size if size else 0.0
    length = sum(map(len, outputs))
    expected = sum(sum(map(len, texts)) / len(texts) for texts in references)
    if not length or not expected:
        return 0.0
    beta = math.log(0.5) / math.log(1.5) ** 2
    return total * math.exp(beta * math.log(min(1.0, length / expected)) ** 2)


def rouge_l(outputs: Sequence[Tokens], references: References, beta: float = 1.2) -> float:
    """Return the mean over outputs of ROUGE-L (Lin 2004) as COCO takes it: largest precision and largest recall, F of ``beta``."""
    library = needed("rouge_score.rouge_scorer", "the metric rouge_l", INSTALL)
    scorer = library.RougeScorer(["rougeL"], tokenizer=_Split())
    each = []
    for output, texts in zip(outputs, references, strict=True):
        found = [scorer.score(" ".join(text), " ".join(output))["rougeL"] for text in texts]
        precision, recall = max(f.precision for f in found), max(f.recall for f in found)
        share = recall + beta**2 * precision
        each.append((1 + beta**2) * precision * recall / share if share else 0.0)
    return sum(each) / len(each)


class _Split:
    def tokenize(self, text: str) -> Tokens:
        return text.split()


def cider(outputs: Sequence[Tokens], references: References, most: int = 4, sigma: float = 6.0) -> float:
    """CIDEr-D times 10 (Vedantam et al. 2015, section 5 and appendix): tf-idf cosines of n-grams up to 4.

    A term's idf is ln(inputs / inputs with the term in a reference). Counts of the output are cut at those of the reference,
    each pair is damped by exp(-(difference in words)^2 / (2 sigma^2)), and the mean is over n, references and inputs.
    """
    inputs: Counter[tuple[str, ...]] = Counter()
    for texts in references:
        inputs.update({ngram for text in texts for n in range(1, most + 1) for ngram in _ngrams(text, n)})

    def weights(text: Tokens, n: int) -> dict[tuple[str, ...], float]:
        return {g: c * math.log(len(outputs) / max(1, inputs[g])) for g, c in _ngrams(text, n).items()}

    each = []
    for output, texts in zip(outputs, references, strict=True):
        for text in texts:
            damping = math.exp(-((len(output) - len(text)) ** 2) / (2 * sigma**2))
            cosines = sum(_clipped_cosine(weights(output, n), weights(text, n)) for n in range(1, most + 1)) / most
            each.append(10 * damping * cosines / len(texts))
    return sum(each) / len(outputs)


def _clipped_cosine(a: dict[tuple[str, ...], float], b: dict[tuple[str, ...], float]) -> float:
    length = math.sqrt(sum(v * v for v in a.values())) * math.sqrt(sum(v * v for v in b.values()))
    return sum(min(v, b[g]) * b[g] for g, v in a.items() if g in b) / length if length else 0.0


def _ngrams(tokens: Tokens, n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
