"""Hold the numbers and the comparisons of a page's sentences to `docs/data`, and list those that nothing holds.

    python -m tools.sentences

A sentence is a paragraph of a page of `HELD`, or a cell of `paper-overview.csv`, from which a page has its tables.
Every number in digits must be held by one of three things. Digits are compared after rounding.

- A pin, `2.97 = LP-1ST | ours, as published | ∞`, names one row of a data file. Each part is the value of one of its
  conditions, `name=value`, the name of the measurement, or `trials=VALUE`; `not PART` leaves rows out. The row's value,
  the ends of its interval and its trials may hold the number. `max`, `min`, `sum` or `count` as first part takes
  several rows.
- A pin `250 = quoted` names the paper's passages in `quotations.csv`. Numbers of the column `paper` are always quoted.
- A condition of the data file needs no pin, as 4 in "at claim 4".

Pins are joined by ";". They stand in the overview's measurement `numbers`, for the files of its measurement `data`, and
in a comment after a paragraph, `<!-- numbers FILE.csv: PINS -->`. Numbers in names (`CIFAR-10`, Figure 2, Theorem 16),
exponents, code and generated tables are left out.

Every word of `COMPARING`, such as "stronger", must stand in a phrase of the text that is held. `PHRASE when COMPARISON`
holds it if the data files say so (`tools.comparisons`); `PHRASE (setting)` marks a fact of the setting, which no data
file has. They are joined by ";" and stand in the overview's measurement `words`, and in a comment after a paragraph,
`<!-- words FILE.csv: PINS -->`.

The overview's measurement `tested` has what the paper prints for an item, as phrases with comparisons in the same form.
They need not hold: the page says which do, and from them how far the item agrees.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tools.comparisons import FOLDS, Unheld, as_number, check, holds_in, selected
from tools.rows import DATA, Row, read_rows

HELD = ("results/reproductions.md",)
"""Pages in `docs` whose sentences are held."""
OVERVIEW, QUOTATIONS = "paper-overview.csv", "quotations.csv"
NUMBER = re.compile(r"(?<![\w.^])(?<![\w^][-−])(?:\d[\d,]*\d|\d)(?:\.\d+)?(?:e[-−]?\d+)?(?![\w-])(?!\.\d)")
LIST = r"(?:\d(?:[\w.]*\w)?(?:, | and | to )?)+"
NAMED = re.compile(rf"(?:Figure|Table|Theorem|Algorithm|Footnote|[Ss]ection|Appendix|appendix)s? [A-Z]?\.?{LIST}")
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\([^)]*\)")
DATES = re.compile(r"\d{4}-\d\d-\d\d|(?<![\d.,])(?:19|20)\d\d(?=\))")
PINS = re.compile(r"<!-- numbers (\S+\.csv)?: *(.*?) *-->", re.DOTALL)
TABLES = re.compile(r"<!-- (?:table|rules|list|strongest)[^>]*-->\n.*?<!-- end[^>]*-->", re.DOTALL)
WORDS = re.compile(r"<!-- words(?: (\S+\.csv))?: *(.*?) *-->", re.DOTALL)
QUOTED, SETTING = "quoted", "setting"
COMPARING = re.compile(
    r"\b(?:order of|agrees?|stronger|weaker|above|below|half|(?<!at )most|more|less|fewer|few|many|higher|larger"
    r"|smaller|lower(?! bounds?)|faster|slower|narrower|wider|tighter|tight|loose|nothing|about as|exceeds?|within"
    r"|unlike|similar|relat(?:ion|ed)|too high|as in the paper)\b",
    re.IGNORECASE,
)
"""Words that compare."""


@dataclass(frozen=True)
class Sentence:
    """A text with what holds its numbers.

    Attributes:
        place: Where it stands.
        text: The text.
        files: Names of its data files.
        pins: Number as written, and what holds it.
        words: Phrase as written, and the comparison that holds it.
        quotations: Passages of the paper.
    """

    place: str
    text: str
    files: tuple[str, ...] = ()
    pins: tuple[tuple[str, str], ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    quotations: tuple[str, ...] = field(default=(), repr=False)


def numbers(text: str) -> list[str]:
    """Return the numbers of a text in digits, as written, without signs and those in names, dates, links and code."""
    for pattern in (CODE, LINK, NAMED, DATES):
        text = pattern.sub(" ", text)
    return NUMBER.findall(text)


def holds(written: str, value: float) -> bool:
    """True if a value has the digits of a number after rounding to the nearest, or down as bounds are."""
    mantissa = written.replace(",", "").partition("e")[0]
    unit = 10.0 ** -len(mantissa.partition(".")[2]) * (10.0 ** int(written.partition("e")[2]) if "e" in written else 1)
    return math.isfinite(value) and -0.5 * unit * (1 + 1e-9) <= value - as_number(written) < unit * (1 - 1e-9)


def values(row: Row) -> list[float]:
    """Return all numbers of a measurement: its value, the ends of its interval, its trials."""
    return [as_number(number) for text in (row.value, row.interval, row.trials) for number in _digits(text)]


def problem(written: str, sentence: Sentence) -> str:
    """Return why nothing holds a number of a sentence; "" if it is held."""
    rows = [row for file in sentence.files for row in _rows(file)]
    pins = [pin for number, pin in sentence.pins if number == written]
    if QUOTED in pins or (not sentence.files and not pins):
        quoted = (_plain(passage) for passage in sentence.quotations)
        if any(holds(written, as_number(number)) for passage in quoted for number in _digits(passage)):
            return ""
        return f"no passage of {QUOTATIONS} for it has that number"
    if not pins and any(written in _digits(value) for row in rows for value in row.settings().values()):
        return ""
    if not pins:
        return f"no pin holds it; {_candidates(written, rows, sentence.files)}"
    reasons = [reason for pin in pins if (reason := _unpinned(written, pin, rows, sentence.files))]
    return "" if len(reasons) < len(pins) else reasons[0]


def _unpinned(written: str, pin: str, rows: Sequence[Row], files: Sequence[str]) -> str:
    """Return why a pin does not hold a number; "" if it does."""
    how, _, rest = pin.partition("|")
    fold = FOLDS.get(how.strip())
    chosen = selected(rest if fold else pin, rows)
    if not chosen or (len(chosen) > 1 and not fold):
        return f"`{pin}` must name one row of {', '.join(files)}, names {len(chosen)}"
    present = [number for row in chosen for number in values(row)]
    if fold:
        present = [float(fold([next(iter(values(row)), 0.0) for row in chosen]))]
    if any(holds(written, value) for value in present):
        return ""
    return f"`{pin}` of {', '.join(files)} is {', '.join(f'{value:g}' for value in present)}"


def unheld(sentence: Sentence) -> Iterator[tuple[str, str]]:
    """Yield each comparing word outside the phrases, and each phrase that is false or not in the text, and why."""
    text = LINK.sub("]", CODE.sub(lambda code: " " * len(code[0]), sentence.text))
    rows = [row for file in sentence.files for row in _rows(file)]
    covered: set[int] = set()
    for phrase, comparison in sentence.words:
        place = text.find(phrase)
        covered.update(range(place, place + len(phrase)))
        try:
            if place < 0:
                raise Unheld("the text has no such phrase")
            if comparison != SETTING:
                check(comparison, rows)
        except Unheld as err:
            yield phrase, str(err)
    for match in COMPARING.finditer(text):
        if match.start() not in covered:
            yield match[0], "no phrase with this word is held: add `PHRASE when COMPARISON` to `words`"


def agreement(true: Sequence[bool]) -> str:
    """Return how far data agree with the statements of a paper, each of which is true of them or not."""
    if not true:
        return "not compared"
    return "yes" if all(true) else "in part" if any(true) else "no"


def _candidates(written: str, rows: Iterable[Row], files: Sequence[str]) -> str:
    """Return the rows that a pin of a number could name, in words."""
    fitting = [row for row in rows if any(holds(written, value) for value in values(row))]
    if not fitting:
        return f"no value of {', '.join(files) or 'a data file'} has it"
    pins = [" | ".join([*row.settings().values(), row.what]) for row in fitting[:3]]
    return "add to `numbers` one of " + "  or  ".join(f"{written} = {pin}" for pin in pins)


def _plain(passage: str) -> str:
    """Return a passage with powers of ten as 1e-6."""
    return re.sub(r"10\^\{?[-−](\d+)\}?", r"1e-\1", passage)


def _digits(passage: str) -> list[str]:
    """Return all numbers of a text, those in words too."""
    return re.findall(r"\d[\d,]*\d(?:\.\d+)?(?:e-?\d+)?|\d(?:\.\d+)?(?:e-?\d+)?", passage)


@cache
def _rows(file: str) -> tuple[Row, ...]:
    return tuple(read_rows(DATA / file))


def parsed(pins: str) -> tuple[tuple[str, str], ...]:
    """Return the pins of a text "2.97 = A | B; 2.46 = C"."""
    pairs = (pin.partition(" = ") for pin in pins.split(";") if pin.strip())
    return tuple((number.strip(), place.strip()) for number, _, place in pairs)


def compared(words: str) -> tuple[tuple[str, str], ...]:
    """Return phrases with their comparisons, of a text "A when B > C; D (setting)"."""
    entries = [entry.strip() for entry in words.split(";") if entry.strip()]
    pairs = [entry.removesuffix(" (setting)").partition(" when ") for entry in entries]
    return tuple((phrase, comparison or SETTING) for phrase, _, comparison in pairs)


def items(rows: Iterable[Row]) -> dict[str, dict[str, str]]:
    """Return the cells of each item of an overview."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        cells.setdefault(row.setting, {})[row.what] = row.value
    return cells


def files_in(cells: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the data files of an item."""
    return tuple(re.findall(r"[\w-]+\.csv", cells.get("data", "")))


def of_overview(rows: Iterable[Row]) -> Iterator[Sentence]:
    """Yield the cells `paper`, `ours` and `remark` of an overview, each with its files, pins, phrases and passages."""
    for setting, cells in items(rows).items():
        passages = tuple(row.value for row in _rows(QUOTATIONS) if row.setting == setting)
        pins, words = parsed(cells.get("numbers", "")), compared(cells.get("words", ""))
        ours = cells.get("ours", "")
        place = f"{OVERVIEW}, {setting}"
        yield Sentence(f"{place}, paper", cells.get("paper", ""), quotations=passages)
        of_ours = tuple(pair for pair in words if pair[0] in ours)
        yield Sentence(f"{place}, ours", ours, files_in(cells), pins, of_ours, passages)
        others = tuple(pair for pair in words if pair not in of_ours)
        yield Sentence(f"{place}, remark", cells.get("remark", ""), files_in(cells), pins, others, passages)


def of_page(page: Path, text: str) -> Iterator[Sentence]:
    """Yield the paragraphs of a page, each with the pins and phrases of the comments after it."""
    text = re.sub(r"(?m)^(?: {4}|#|!\[).*$", "", re.sub(r"(?s)```.*?```", "", TABLES.sub("", text)))
    passages = tuple(row.value for row in _rows(QUOTATIONS) if row.settings().get("item") == page.stem)
    for paragraph in re.split(r"\n\s*\n(?!<!-- (?:numbers|words))", text):
        comments = {name: _comment(pattern, paragraph) for name, pattern in (("numbers", PINS), ("words", WORDS))}
        files = tuple(dict.fromkeys(file for file, _ in comments.values() if file))
        prose = WORDS.sub("", PINS.sub("", paragraph)).strip()
        if prose:
            place = f"{page.name}, {prose.partition(' ')[0]} ...: {prose!r}"
            pins, words = parsed(comments["numbers"][1]), compared(comments["words"][1])
            yield Sentence(place, prose, files, pins, words, passages)


def _comment(pattern: re.Pattern[str], paragraph: str) -> tuple[str, str]:
    """Return the file and the entries of a comment; "" where there is none."""
    match = pattern.search(paragraph)
    return (match[1] or "", match[2].replace("\n", " ")) if match else ("", "")


def faults(sentences: Iterable[Sentence]) -> list[str]:
    """Return a line for each number and comparing word that nothing holds: where it is, and what is missing."""
    return [
        f"{written} in {sentence.text!r} ({sentence.place}): {reason}"
        for sentence in sentences
        for written, reason in (
            *((number, problem(number, sentence)) for number in dict.fromkeys(numbers(sentence.text))),
            *(() if sentence.place.endswith(", paper") else unheld(sentence)),
        )
        if reason
    ]


def with_agreement(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of an overview with two more measurements of each item, which its comparisons decide.

    `agrees` is the word of `agreement`, and `printed statements` has each phrase of `tested` with yes or no.
    Raises: Unheld for a comparison that cannot be read.
    """
    derived = []
    for setting, cells in items(rows).items():
        data = [row for file in files_in(cells) for row in _rows(file)]
        tested = [(phrase, holds_in(comparison, data)) for phrase, comparison in compared(cells.get("tested", ""))]
        agrees = "not in the paper" if cells.get("paper") == "–" else agreement([is_true for _, is_true in tested])
        listed = "; ".join(f"{phrase}: {'yes' if is_true else 'no'}" for phrase, is_true in tested)
        derived += [Row(setting, "agrees", agrees), Row(setting, "printed statements", listed or "–")]
    return [*rows, *derived]


def all_sentences() -> Iterator[Sentence]:
    """Yield every sentence whose numbers and comparisons are held."""
    yield from of_overview(_rows(OVERVIEW))
    for name in HELD:
        page = DATA.parent / name
        yield from of_page(page, page.read_text(encoding="utf-8"))


def main() -> None:
    """Print what nothing holds; exit with 1 if there is anything."""
    lines = faults(all_sentences())
    print("\n".join(lines) or "every number and every comparison is held")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
