"""Hold the numbers of a page's sentences to `docs/data`, and list those that nothing holds.

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
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

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
QUOTED = "quoted"
FOLDS: Mapping[str, Callable[[list[float]], float]] = {"max": max, "min": min, "sum": sum, "count": len}
"""Functions of the values of several rows."""


@dataclass(frozen=True)
class Sentence:
    """A text with what holds its numbers.

    Attributes:
        place: Where it stands.
        text: The text.
        files: Names of its data files.
        pins: Number as written, and what holds it.
        quotations: Passages of the paper.
    """

    place: str
    text: str
    files: tuple[str, ...] = ()
    pins: tuple[tuple[str, str], ...] = ()
    quotations: tuple[str, ...] = field(default=(), repr=False)


def numbers(text: str) -> list[str]:
    """Return the numbers of a text in digits, as written, without signs and those in names, dates, links and code."""
    for pattern in (CODE, LINK, NAMED, DATES):
        text = pattern.sub(" ", text)
    return NUMBER.findall(text)


def as_number(text: str) -> float:
    """Return a number as written, such as "1,080", "0.10" or "1e-6"."""
    return float(text.replace(",", "").replace("−", "-"))


def holds(written: str, value: float) -> bool:
    """True if a value has the digits of a number after rounding to the nearest, or down as bounds are."""
    mantissa = written.replace(",", "").partition("e")[0]
    unit = 10.0 ** -len(mantissa.partition(".")[2]) * (10.0 ** int(written.partition("e")[2]) if "e" in written else 1)
    return math.isfinite(value) and -0.5 * unit * (1 + 1e-9) <= value - as_number(written) < unit * (1 - 1e-9)


def values(row: Row) -> list[float]:
    """Return all numbers of a measurement: its value, the ends of its interval, its trials."""
    return [as_number(number) for text in (row.value, row.interval, row.trials) for number in _digits(text)]


def selected(pin: str, rows: Iterable[Row]) -> list[Row]:
    """Return the rows that a pin names."""
    parts = [part.strip() for part in pin.split("|")]
    wanted = [part for part in parts if not part.startswith("not ")]
    unwanted = [part.removeprefix("not ") for part in parts if part.startswith("not ")]
    return [row for row in rows if _words(row).issuperset(wanted) and not _words(row) & {*unwanted}]


def _words(row: Row) -> set[str]:
    """Return what a part of a pin may name of a row."""
    conditions = row.settings()
    named = (f"{name}={value}" for name, value in conditions.items())
    return {row.what, *conditions.values(), *named, f"trials={row.trials}"}


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


def of_overview(rows: Iterable[Row]) -> Iterator[Sentence]:
    """Yield the cells `paper`, `ours` and `remark` of an overview, each with its files, pins and passages."""
    items: dict[str, dict[str, str]] = {}
    for row in rows:
        items.setdefault(row.setting, {})[row.what] = row.value
    for setting, cells in items.items():
        files = tuple(re.findall(r"[\w-]+\.csv", cells.get("data", "")))
        passages = tuple(row.value for row in _rows(QUOTATIONS) if row.setting == setting)
        for column in ("paper", "ours", "remark"):
            place, printed = f"{OVERVIEW}, {setting}, {column}", column == "paper"
            pins = () if printed else parsed(cells.get("numbers", ""))
            yield Sentence(place, cells.get(column, ""), () if printed else files, pins, passages)


def of_page(page: Path, text: str) -> Iterator[Sentence]:
    """Yield the paragraphs of a page, each with the pins of the comment after it."""
    text = re.sub(r"(?m)^(?: {4}|#|!\[).*$", "", re.sub(r"(?s)```.*?```", "", TABLES.sub("", text)))
    passages = tuple(row.value for row in _rows(QUOTATIONS) if row.settings().get("item") == page.stem)
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    for place, paragraph in enumerate(paragraphs):
        after = paragraphs[place + 1] if place + 1 < len(paragraphs) else ""
        comment = PINS.search(paragraph) or PINS.fullmatch(after)
        files = (comment[1],) if comment and comment[1] else ()
        pins = parsed(comment[2].replace("\n", " ")) if comment else ()
        words = PINS.sub("", paragraph).strip()
        if words:
            yield Sentence(f"{page.name}, {words.partition(' ')[0]} ...: {words!r}", words, files, pins, passages)


def faults(sentences: Iterable[Sentence]) -> list[str]:
    """Return a line for each number that nothing holds: the number, its sentence, and what is missing."""
    return [
        f"{written} in {sentence.text!r} ({sentence.place}): {reason}"
        for sentence in sentences
        for written in dict.fromkeys(numbers(sentence.text))
        if (reason := problem(written, sentence))
    ]


def all_sentences() -> Iterator[Sentence]:
    """Yield every sentence whose numbers are held."""
    yield from of_overview(_rows(OVERVIEW))
    for name in HELD:
        page = DATA.parent / name
        yield from of_page(page, page.read_text(encoding="utf-8"))


def main() -> None:
    """Print the numbers that nothing holds; exit with 1 if there are any."""
    lines = faults(all_sentences())
    print("\n".join(lines) or "every number is held")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
