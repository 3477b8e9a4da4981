"""BLEU, NIST, METEOR, ROUGE-L and CIDEr: small cases worked out by hand."""

from __future__ import annotations

import math
import random
import stat
import sys
from pathlib import Path

import pytest

from groupclip.paper import meteor, scores
from groupclip.paper.source import MissingSource


def words(*texts: str) -> list[list[str]]:
    return [text.split() for text in texts]


# ------------------------------------------------------------------------------ BLEU


@pytest.mark.parametrize(
    ("output", "references", "expected"),
    [
        ("a b c d e", ["a b c d f"], 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),
        ("A B c d e", ["a b C D f"], 100 * 0.2**0.25),  # case doesn't count
        ("a b c d", ["a b c d e"], 100 * math.exp(1 - 5 / 4)),  # one word short
        ("a b c d e", ["a b x", "c d e a b"], 100 * (5 / 5 * 3 / 4 * 1 / 3 * 0) ** 0.25),
        ("a b c d e", ["x", "a b c d e", "y z"], 100.0),  # the closest reference's length
    ],
)
def test_bleu_by_hand(output: str, references: list[str], expected: float) -> None:
    assert scores.bleu([output], [references]) == pytest.approx(expected, abs=1e-9)


def test_bleu_is_of_the_corpus_and_takes_any_number_of_references() -> None:
    # 1-grams 5 + 4 of 9, 2-grams 4 + 3, 3-grams 3 + 2, 4-grams 2 + 1: all found; length 9 of 9
    assert scores.bleu(["a b c d e", "f g h i"], [["a b c d e"], ["f g h i", "x"]]) == pytest.approx(100)
    # 8/9, 6/7, 4/5, 2/3 with one word wrong at the end of the second
    expected = 100 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** 0.25
    assert scores.bleu(["a b c d e", "f g h x"], [["a b c d e"], ["f g h i"]]) == pytest.approx(expected)


# ------------------------------------------------------------------------------ NIST


def test_nist_by_hand() -> None:
    # Reference words: a a b c, 4 in all. a weighs log2(4/2) = 1, b log2(4/1) = 2; "a b" weighs log2(2/1) = 1.
    references = [words("a b", "a c")]
    assert scores.nist(words("a b"), references) == pytest.approx((1 + 2) / 2 + 1 / 1)
    assert scores.nist(words("x y"), references) == 0
    assert scores.nist([[]], references) == 0


def test_nist_takes_all_references_at_once_and_cuts_repeated_words() -> None:
    # Words a b c d: each log2(4) = 2. "a d": hits from two references; bigrams "a d" none.
    assert scores.nist(words("a d"), [words("a b", "c d")]) == pytest.approx((2 + 2) / 2)
    # "a a" with one a in each reference counts once
    assert scores.nist(words("a a"), [words("a b", "c a")]) == pytest.approx(math.log2(4 / 2) / 2)


def test_nist_halves_at_two_thirds_of_the_length() -> None:
    # words 3 of one reference: each log2(3); output of 2 words: mean log2(3), bigram "a b" log2(1/1) = 0
    assert scores.nist(words("a b"), [words("a b c")]) == pytest.approx(0.5 * math.log2(3))


def test_nist_compares_with_the_mean_length_of_the_references() -> None:
    # Words a b c a b c d e: a, b, c weigh log2(8/2) = 2; "a b", "b c" and "a b c" weigh log2(2/2) = 0. Mean length 4, not 5.
    beta = math.log(0.5) / math.log(1.5) ** 2
    expected = 2 * math.exp(beta * math.log(3 / 4) ** 2)
    assert scores.nist(words("a b c"), [words("a b c", "a b c d e")]) == pytest.approx(expected)


def test_nist_of_single_references_is_nltks() -> None:
    nltk = pytest.importorskip("nltk.translate.nist_score")
    dice = random.Random(0)
    text = lambda: [dice.choice("abcdefgh") for _ in range(dice.randint(5, 12))]  # noqa: E731
    outputs, references = [text() for _ in range(20)], [[text()] for _ in range(20)]
    assert scores.nist(outputs, references) == pytest.approx(nltk.corpus_nist(references, outputs, 5), rel=1e-12)
    several = [[*one, text(), text()] for one in references]
    assert scores.nist(outputs, several) > nltk.corpus_nist(several, outputs, 5)  # which takes one of them


# ------------------------------------------------------------------------------ ROUGE-L and CIDEr


def test_rouge_l_takes_the_best_precision_and_the_best_recall() -> None:
    # Against "a c e" the common subsequence is "a c": precision 2/4, recall 2/3. Against a..h: 4/4 and 4/8.
    precision, recall = 1, 2 / 3
    expected = (1 + 1.44) * precision * recall / (recall + 1.44 * precision)
    assert scores.rouge_l(words("a b c d"), [words("a c e", "a b c d e f g h")]) == pytest.approx(expected)
    assert scores.rouge_l(words("a", "b"), [words("x"), words("b")]) == pytest.approx(0.5)


def test_cider_by_hand() -> None:
    # Each n-gram is in one of two inputs: idf ln 2 everywhere. 1- and 2-grams agree, 3- and 4-grams there are none.
    references = [words("a b"), words("c d")]
    assert scores.cider(words("a b", "c d"), references) == pytest.approx(10 * 2 / 4)
    assert scores.cider(words("c d", "c d"), references) == pytest.approx(10 * 2 / 4 / 2)
    # "a b e": cosines 2 / sqrt(3 * 2) and 1 / sqrt(2), one word too long; the unknown word has idf ln 2 as well
    cosines = 2 / math.sqrt(6) + 1 / math.sqrt(2)
    expected = 10 * (math.exp(-1 / 72) * cosines / 4 + 2 / 4) / 2
    assert scores.cider(words("a b e", "c d"), references) == pytest.approx(expected)


def test_cider_gives_nothing_for_words_of_every_input_and_cuts_repetitions() -> None:
    # "the" is in both inputs: idf 0. "a a a" against "a": min(3, 1) * 1 / (3 * 1)
    assert scores.cider(words("the", "the"), [words("the"), words("the")]) == 0
    damping = math.exp(-4 / 72)
    assert scores.cider(words("a a a", "b"), [words("a"), words("c")]) == pytest.approx(10 * damping / 3 / 4 / 2)


# ------------------------------------------------------------------------------ METEOR


PROGRAM = """#!{python}
import sys
for line in sys.stdin:
    parts = line.rstrip("\\n").split(" ||| ")
    if parts[0] == "SCORE":
        print(f"{{len(parts) - 2}} {{parts[-1].count(' ') + 1}}", flush=True)  # references and words
    else:
        numbers = [float(p.split()[1]) / 10 for p in parts[1:]]
        print("\\n".join(map(str, [*numbers, sum(numbers)])), flush=True)
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str = PROGRAM) -> None:
    """A package with the file of METEOR, and a ``java`` that speaks its protocol."""
    jar = folder / "pycocoevalcap" / "meteor" / "meteor-1.5.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    (folder / "pycocoevalcap" / "__init__.py").touch()
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(program.format(python=sys.executable))
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PATH", str(java.parent))


def test_meteor_asks_its_program_for_every_output_and_takes_the_last_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch)
    assert meteor.corpus_meteor(["one two", "one ||| two three", "one"], [["x", "y"], ["x"], ["x"]]) == pytest.approx(
        0.6
    )


def test_a_program_that_ends_is_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "#!{python}\n")
    with pytest.raises(RuntimeError, match="ended without a score"):
        meteor.corpus_meteor(["one two"], [["x"]])


@pytest.mark.skipif("meteor" in scores.unavailable(), reason="needs pycocoevalcap and Java")
def test_meteor_knows_synonyms() -> None:
    assert meteor.corpus_meteor(["the pub is cheap"], [["the pub is cheap"]]) == pytest.approx(1.0)
    near = meteor.corpus_meteor(["the car is here"], [["the automobile is here"]])
    assert meteor.corpus_meteor(["the xyz is here"], [["the automobile is here"]]) < near < 1


def test_what_meteor_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs Java" in scores.unavailable()["meteor"]
    with pytest.raises(MissingSource, match=r"apt-get install default-jre-headless"):
        scores.require(["bleu", "meteor"])
    (tmp_path / "pycocoevalcap" / "meteor" / "meteor-1.5.jar").unlink()
    with pytest.raises(MissingSource, match=r"'pycocoevalcap'.*pip install --no-deps pycocoevalcap"):
        scores.score(["a"], [["a"]])


# ------------------------------------------------------------------------------ all of them


def test_tokens_are_lower_case_without_glued_punctuation() -> None:
    assert scores.mteval("The Vaults: near Café Adriatic, £20-25.") == [
        "the", "vaults", ":", "near", "café", "adriatic", ",", "£20", "-", "25", ".",
    ]  # fmt: skip


def test_a_perfect_output_and_the_units() -> None:
    texts = ["The Vaults is a cheap pub near the river.", "Zizzi serves Italian food in the city centre."]
    found = scores.score(texts, [[texts[0], "A pub."], [texts[1]]], ("bleu", "nist", "rouge_l", "cider"))
    assert found["bleu"] == pytest.approx(100) and found["rouge_l"] == pytest.approx(100)
    assert 0 < found["cider"] <= 10 and found["nist"] > 0
    # punctuation counts for BLEU, and not for what COCO scores
    bare = scores.score([text.rstrip(".") for text in texts], [[t] for t in texts], ("bleu", "rouge_l"))
    assert bare["bleu"] < 100 and bare["rouge_l"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("outputs", "references", "metrics", "message"),
    [
        ([], [], ("bleu",), "0 outputs"),
        (["a"], [["a"], ["b"]], ("bleu",), "1 outputs for 2"),
        (["a"], [[]], ("bleu",), "no reference"),
        (["a"], [["a"]], ("blue",), "unknown metric 'blue'; metrics: bleu, "),
    ],
)
def test_what_cannot_be_scored_is_refused(
    outputs: list[str], references: list[list[str]], metrics: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        scores.score(outputs, references, metrics)
