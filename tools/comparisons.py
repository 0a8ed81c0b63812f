"""Comparisons of values in `docs/data`, by which the words of a page are held, as `tools.sentences` holds its numbers.

A comparison joins two or more sides by <, >, <=, >=, == or !=, or says how far two may differ: `A ~ 10 % ~ B`.

    LP-1ST | ours > 2 * PATE-FM | ours
    each | influence > each | ClipBKD
    most | Higgs | response >= most | Higgs | counts
    order | learner | paper | ∞ == order | learner | ours | ∞

Several are joined by &. A side is a number, or the parts of a pin, as in `tools.sentences`, perhaps with a factor. A
pin names one row, or starts with what to use of it or of several:

- `low`, `high`: an end of its interval
- `max`, `min`, `sum`, `count`, `median` of the values
- `max share | NAME`: the largest quotient of a value and that condition
- `each`, `most`: rows whose other conditions are equal are compared, and all must satisfy, or more than half
- `order | NAME`: the values of a condition by falling value
- `rank correlation | A / B`: that of Spearman of what two pins name, by equal conditions
"""

from __future__ import annotations

import operator
import re
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import spearmanr

from tools.rows import Row

FOLDS: Mapping[str, Callable[[list[float]], float]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "count": len,
    "median": statistics.median,
}
"""Functions of the values of several rows."""
OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
JOINED = re.compile(r" (>=|<=|!=|==|>|<|~ [\d.]+ % ~) ")
FACTOR = re.compile(r"([\d.]+) \* ")
DIGITS = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[-−]?\d+)?")
INFINITE = {"inf": float("inf"), "∞": float("inf")}


class Unheld(ValueError):
    """A comparison that cannot be read, or that does not hold, with the reason."""


class IsFalse(Unheld):
    """A comparison that does not hold."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        values: Numbers by what distinguishes them; one number without a key for a single value.
        order: Names by falling value, of a side that is an order.
        is_most: True if more than half of the numbers must satisfy the comparison, False if all must.
    """

    values: Mapping[Hashable, float]
    order: tuple[str, ...] = ()
    is_most: bool = False


def as_number(text: str) -> float:
    """Return a number as written, such as "1,080", "0.10" or "1e-6"."""
    return float(text.replace(",", "").replace("−", "-"))


def value_of(row: Row) -> float:
    """Return the value of a row that has a number."""
    match = DIGITS.match(row.value)
    return as_number(match[0]) if match else INFINITE[row.value]


def words_of(row: Row) -> set[str]:
    """Return what a part of a pin may name of a row."""
    conditions = row.settings()
    named = (f"{name}={value}" for name, value in conditions.items())
    return {row.what, *conditions.values(), *named, f"trials={row.trials}"}


def selected(pin: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that a pin names."""
    parts = [part.strip() for part in pin.split("|")]
    wanted = [part for part in parts if not part.startswith("not ")]
    unwanted = [part.removeprefix("not ") for part in parts if part.startswith("not ")]
    return [row for row in rows if words_of(row).issuperset(wanted) and not words_of(row) & {*unwanted}]


def side(text: str, rows: Sequence[Row]) -> Side:
    """Return a side of a comparison. Raises: Unheld if it names no row, or several without saying what to take."""
    if DIGITS.fullmatch(text):
        return Side({(): as_number(text)})
    factor = FACTOR.match(text)
    scale = float(factor[1]) if factor else 1.0
    text = text[factor.end() :] if factor else text
    how, _, pin = (part.strip() for part in text.partition("|"))
    if how == "order":
        name, _, pin = (part.strip() for part in pin.partition("|"))
        matching = _with_numbers(pin, rows)
        ordered = sorted(matching, key=value_of, reverse=True)
        return Side({}, tuple(row.settings()[name] for row in ordered))
    if how in ("low", "high"):
        (row,) = selected(pin, rows) or [Row("", "", "")]
        ends = [as_number(number) for number in DIGITS.findall(row.interval)]
        if len(ends) != 2:
            raise Unheld(f"`{pin}` names no row with an interval of two ends")
        return Side({(): scale * ends[how == "high"]})
    if how == "max share":
        name, _, pin = (part.strip() for part in pin.partition("|"))
        return Side({(): max(value_of(row) / as_number(row.settings()[name]) for row in _with_numbers(pin, rows))})
    if how == "rank correlation":
        pairs = _pairs(*(side(f"each | {part.strip()}", rows).values for part in pin.split("/")))
        return Side({(): float(spearmanr(*zip(*pairs, strict=True)).statistic)})
    if how in FOLDS:
        return Side({(): scale * FOLDS[how]([value_of(row) for row in _with_numbers(pin, rows)])})
    if how in ("each", "most"):
        parts = {part.strip() for part in pin.split("|")}
        matching = _with_numbers(pin, rows)
        return Side({_rest(row, parts): scale * value_of(row) for row in matching}, is_most=how == "most")
    matching = _with_numbers(text, rows)
    if len(matching) > 1:
        raise Unheld(f"`{text}` must name one row, names {len(matching)}")
    return Side({(): scale * value_of(matching[0])})


def _with_numbers(pin: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that a pin names, without those that have no number, such as "–" where a paper prints none."""
    matching = [row for row in selected(pin, rows) if row.value in INFINITE or DIGITS.match(row.value)]
    if not matching:
        raise Unheld(f"`{pin}` names no row with a number")
    return matching


def _rest(row: Row, parts: set[str]) -> Hashable:
    """Return the conditions of a row, and its measurement, that no part of its pin names."""
    conditions = row.settings() | {"what": row.what}
    return frozenset(
        (name, value) for name, value in conditions.items() if value not in parts and f"{name}={value}" not in parts
    )


def check(comparison: str, rows: Sequence[Row]) -> None:
    """Do nothing if a comparison holds of the rows of its data files.

    Raises: Unheld, with what is wrong, if it does not, or cannot be read.
    """
    for part in comparison.split(" & "):
        _check(part.strip(), rows)


def _check(comparison: str, rows: Sequence[Row]) -> None:
    texts = JOINED.split(comparison)
    if len(texts) < 3:
        raise Unheld(f"a comparison has two sides joined by one of {' '.join(OPERATORS)}, got `{comparison}`")
    sides = [side(text.strip(), rows) for text in texts[::2]]
    for first, joined, second in zip(sides, texts[1::2], sides[1:], strict=False):
        _compare(first, joined, second, comparison)


def holds_in(comparison: str, rows: Sequence[Row]) -> bool:
    """True if a comparison holds of the rows. Raises: Unheld if it cannot be read."""
    try:
        check(comparison, rows)
    except IsFalse:
        return False
    return True


def _compare(first: Side, joined: str, second: Side, comparison: str) -> None:
    if first.order or second.order:
        if joined not in ("==", "!=") or (first.order == second.order) != (joined == "=="):
            raise IsFalse(f"`{comparison}` is false: {', '.join(first.order)} {joined} {', '.join(second.order)}")
        return
    pairs = _pairs(first.values, second.values)
    if not pairs:
        raise Unheld(f"the sides of `{comparison}` have no conditions in common")
    fitting = [pair for pair in pairs if _holds(*pair, joined)]
    enough = len(fitting) > len(pairs) / 2 if first.is_most or second.is_most else len(fitting) == len(pairs)
    if not enough:
        wrong = next(pair for pair in pairs if pair not in fitting)
        raise IsFalse(
            f"`{comparison}` is false: in {len(fitting)} of {len(pairs)}; {wrong[0]:g} {joined} {wrong[1]:g} is not so"
        )


def _pairs(first: Mapping[Hashable, float], second: Mapping[Hashable, float]) -> list[tuple[float, float]]:
    """Return the numbers of equal conditions; a single number is compared with all."""
    if tuple(second) == ((),):
        return [(value, second[()]) for value in first.values()]
    if tuple(first) == ((),):
        return [(first[()], value) for value in second.values()]
    return [(value, second[key]) for key, value in first.items() if key in second]


def _holds(first: float, second: float, joined: str) -> bool:
    if joined in OPERATORS:
        return OPERATORS[joined](first, second)
    tolerance = float(joined.split()[1]) / 100
    return abs(first - second) <= tolerance * max(abs(first), abs(second))
