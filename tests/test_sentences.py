"""Sentences of the pages: each number and each comparison is held by its data file or by a passage of the paper."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.loops import Cases
from tools import sentences
from tools.comparisons import IsFalse, Unheld, check
from tools.rows import DATA, Row, read_rows
from tools.sentences import Sentence, compared, faults, holds, numbers, of_overview, of_page, parsed, with_agreement

PAGE = DATA.parent / "results" / "reproductions.md"
OVERVIEW = read_rows(DATA / sentences.OVERVIEW)


def test_every_number_and_comparison_of_a_sentence_is_held() -> None:
    assert faults(sentences.all_sentences()) == [], "see `python -m tools.sentences`"


def test_a_false_number_of_any_cell_is_found() -> None:
    """Every number of the overview is changed in turn; the changed one lacks its pin or passage."""
    with Cases() as cases:
        for sentence in of_overview(OVERVIEW):
            for number in set(numbers(sentence.text)):
                with cases.case(f"{sentence.place}: {number}"):
                    wrong = number + "7" if "." in number else number + ".7"
                    assert faults([replace(sentence, text=f"measured {wrong}")])


def test_a_number_that_moved_in_its_file_is_found() -> None:
    """A pin names its row: another row with the same digits does not hold the number."""
    sentence = next(cell for cell in of_overview(OVERVIEW) if "99.9" in cell.text)
    assert faults([sentence]) == []
    pins = (*parsed("99.9 = gaussian | allowed share of the square, %"), *sentence.pins[1:])
    (line,) = faults([replace(sentence, pins=pins)])
    assert line.startswith("99.9 in '99.9 % of the square")
    assert line.endswith("of paper-bayesian-figures.csv is 76.1")


def test_a_false_number_of_a_paragraph_is_found() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert faults(of_page(PAGE, text)) == []
    for number in (re.search(r"lists (\d+) values", text), re.search(r"rectangle is (3\.\d+), not", text)):
        assert number is not None
        wrong = number[1] + "1"
        (line,) = faults(of_page(PAGE, text[: number.start(1)] + wrong + text[number.end(1) :]))
        assert line.startswith(f"{wrong} in ")
        assert "printed-figures.csv" in line


def test_a_number_without_a_pin_names_the_rows_that_have_it() -> None:
    sentence = Sentence("page", "our bound is 99.9", ("paper-bayesian-figures.csv",))
    (line,) = faults([sentence])
    assert line == (
        "99.9 in 'our bound is 99.9' (page): no pin holds it; add to `numbers` one of "
        "99.9 = 2 | one point | allowed share of the square, %"
    )
    (line,) = faults([replace(sentence, text="our bound is 12.3")])
    assert line.endswith("no value of paper-bayesian-figures.csv has it")


def test_a_pin_names_one_row_or_says_how_it_takes_several() -> None:
    sentence = Sentence("page", "up to 99.9", ("paper-bayesian-figures.csv",))
    several = "allowed share of the square, %"
    (line,) = faults([replace(sentence, pins=parsed(f"99.9 = {several}"))])
    assert "must name one row of paper-bayesian-figures.csv, names 3" in line
    assert faults([replace(sentence, pins=parsed(f"99.9 = max | {several}"))]) == []
    assert faults([replace(sentence, pins=parsed(f"99.9 = {several} | not gaussian | not dp-sgd"))]) == []
    assert faults([replace(sentence, text="3", pins=parsed(f"3 = count | {several}"))]) == []
    assert faults([replace(sentence, text="from 64.3", pins=parsed(f"64.3 = max | {several}"))]) != []


def test_a_printed_number_needs_a_passage() -> None:
    passage = "lower bounds at 10^{-6} for 1,000 queries"
    printed = Sentence("cell", "1,000 queries at δ = 1e-6", quotations=(passage,))
    assert faults([printed]) == []
    (line,) = faults([replace(printed, text="200 queries")])
    assert line.endswith("no passage of quotations.csv for it has that number")


def test_a_condition_of_the_file_needs_no_pin() -> None:
    sentence = Sentence("cell", "after 4,000 trials", ("paper-bayesian-figures.csv",))
    assert faults([sentence]) == []
    assert faults([replace(sentence, text="after 5,000 trials")]) != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CIFAR-10, LP-1ST, 2-cut, KDD12, SmolLM2-135M, `table-2`", []),
        ("Figures 2 and 3, Theorem 16, appendix D.1, section 4.3, Tables 1 and 2", []),
        ("[a](../data/a-1.csv) of 2026-11-27, Lu et al. (2022)", []),
        ("2.1987 of 2000 rows", ["2.1987", "2000"]),
        ("at ε = 1 and 4: 0.83, (4.18, 6.05)", ["1", "4", "0.83", "4.18", "6.05"]),
        ("1,080 of 1e-6, 31 % at 10.", ["1,080", "1e-6", "31", "10"]),
        ("slopes -0.492 and (−2.98), at most k^-0.5 (Theorems 3.3, 3.4 and 3.7)", ["0.492", "2.98"]),
    ],
)
def test_numbers_are_read_without_those_in_names(text: str, expected: list[str]) -> None:
    assert numbers(text) == expected


@pytest.mark.parametrize(
    ("written", "value", "expected"),
    [
        ("2.97", 2.974, True),
        ("2.97", 2.965, True),
        ("2.97", 2.979, True),  # a bound is rounded down
        ("2.97", 2.98, False),
        ("2.97", 2.964, False),
        ("46", 46.4, True),
        ("46", 47.0, False),
        ("1,080", 1080, True),
        ("1e-6", 1e-6, True),
        ("1e-6", 2e-6, False),
        ("0.00", 0.0, True),
        ("0.00", 0.01, False),
    ],
)
def test_digits_are_compared_after_rounding(written: str, value: float, expected: bool) -> None:
    assert holds(written, value) is expected


def test_a_row_holds_the_ends_of_its_interval_and_its_trials() -> None:
    assert sentences.values(Row("a=1", "b", "−31%", "(0.10, 0.34)", "1,024 trials")) == [31, 0.10, 0.34, 1024]


IMAGES, CLICKS = ("paper-images-cifar-10.csv",), ("paper-click-logs.csv",)
ACCURACY, BOUND = "test accuracy, %", "bound on epsilon"
FALSE = {
    "the same order of learners": (
        IMAGES,
        f"order | learner | paper | ∞ | {ACCURACY} == order | learner | ours | ∞ | {ACCURACY}",
    ),
    "LP-1ST leaks more at a small ε": (
        IMAGES,
        f"LP-1ST | ours, best fraction | 1 | {BOUND} > LP-1ST | ours, best fraction | ∞ | {BOUND}",
    ),
    "LP-1ST agrees with print": (
        IMAGES,
        f"LP-1ST | paper | ∞ | {BOUND} ~ 10 % ~ LP-1ST | ours, as published | ∞ | {BOUND}",
    ),
    "half of the printed accuracy or more": (
        IMAGES,
        f"each | ours | ∞ | {ACCURACY} >= 0.5 * each | paper | ∞ | {ACCURACY}",
    ),
    "most bounds of PATE are above zero": (
        CLICKS,
        f"most | Kaggle, 3,200 rows | PATE | ours, if the proxy is right | {BOUND} > 0",
    ),
    "log-losses are lower than in print": (CLICKS, "each | paper | log-loss > each | ours | log-loss"),
    "ClipBKD is above influence": (("paper-ml-audit-figure-3.csv",), "each | ClipBKD > each | influence"),
    "the influence is related to non-sphericity": (
        ("paper-ml-audit-figure-3.csv",),
        "rank correlation | largest over smallest singular value / ClipBKD > 0.8",
    ),
    "no bound exceeds its claim": (("paper-ml-audit.csv",), "max share | claimed | detected epsilon <= 1"),
    "intervals are wider with more trials": (
        ("paper-bayesian-figures.csv",),
        "high | trials=4,000 | interval > high | trials=4 | interval",
    ),
}
"""False sentences about the data, each with the comparison that it makes."""


@pytest.mark.parametrize("sentence", FALSE)
def test_a_false_comparison_is_found(sentence: str) -> None:
    """Without a comparison its words are found; with the one that it makes, that this is false."""
    files, comparison = FALSE[sentence]
    (line,) = faults([Sentence("page", sentence, files, words=((sentence, comparison),))])
    assert "is false: " in line
    assert "no phrase with this word is held" in "".join(faults([Sentence("page", sentence, files)]))


def test_a_true_comparison_is_held_until_its_data_change() -> None:
    rows = read_rows(DATA / IMAGES[0])
    comparison = f"LP-1ST | ours | ∞ | {ACCURACY} > LP-1ST | ours | 1 | {ACCURACY}"
    check(comparison, rows)
    moved = [replace(row, value="1") if {"LP-1ST", "ours", "∞"} <= {*row.settings().values()} else row for row in rows]
    with pytest.raises(IsFalse, match=r"in 0 of 1; 1 > [\d.]+ is not so"):
        check(comparison, moved)


@pytest.mark.parametrize(
    ("comparison", "message"),
    [
        ("A | B", "a comparison has two sides"),
        (f"LP-1ST | {ACCURACY} > 0", "must name one row, names 6"),
        (f"CNN | {ACCURACY} > 0", "names no row with a number"),
        (f"low | LP-1ST | paper | ∞ | {ACCURACY} > 0", "no row with an interval of two ends"),
        (
            f"each | ours | ∞ | {ACCURACY} > each | LP-1ST | paper | {BOUND}",
            "no conditions in common",
        ),
    ],
)
def test_a_comparison_that_cannot_be_read_says_why(comparison: str, message: str) -> None:
    with pytest.raises(Unheld, match=re.escape(message)):
        check(comparison, read_rows(DATA / IMAGES[0]))


def test_a_phrase_that_the_text_lost_is_found() -> None:
    sentence = Sentence("page", "All is well", words=compared("ours is stronger (setting)"))
    assert faults([sentence]) == ["ours is stronger in 'All is well' (page): the text has no such phrase"]


def test_the_page_says_how_far_an_item_agrees_by_its_comparisons() -> None:
    item, data = "paper=A; item=`figure-1`", Row("paper=A; item=`figure-1`", "data", "paper-ml-audit-figure-3.csv")
    true, false = "more when each | influence > each | ClipBKD", "less when each | influence < each | ClipBKD"
    for tested, agrees in ((true, "yes"), (false, "no"), (f"{true}; {false}", "in part"), ("", "not compared")):
        rows = with_agreement([data, Row(item, "tested", tested)])
        assert [row.value for row in rows if row.what == "agrees"] == [agrees]
    assert Row(item, "printed statements", "more: yes; less: no") in with_agreement(
        [data, Row(item, "tested", f"{true}; {false}")]
    )
