"""JSON that a stranger may have written, `bounds.json` above all: read within limits, each value as what it must be.

Whoever reads a number or a word of such a file takes it from here, with the range it must lie in. What is not so is one
sentence that names the file and the place in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from dpaudit.errors import SpecError, shortened

MAX_BYTES = 64 << 20  # of a file
MAX_VALUES = 4_000_000  # in it; each takes up to 80 bytes of memory
MAX_ITEMS = 20_000  # of a list whose items are told one by one: twice as many audits as a spec may have
MAX_LETTERS = 200_000  # of a name: as many as a spec may have
_INFINITE = {"inf": math.inf, "-inf": -math.inf}  # as a report has them, whose JSON holds finite numbers alone

_Named = TypeVar("_Named", bound=Enum)


@dataclass(frozen=True)
class StatedValue:
    """A value of a stranger's file, and where it stands.

    Attributes:
        value: The value as JSON has it; None where there is none.
        source: The file, as it is shown.
        at: The fields that lead to the value, as in "results[0].claim".
        remedy: What to do about a wrong one.
    """

    value: Any
    source: str
    at: str = ""
    remedy: str = ""

    @classmethod
    def read(cls, content: bytes, source: str, *, remedy: str = "") -> StatedValue:
        """Read a file's content.

        Raises: SpecError, one sentence, for what is no JSON or holds more than a file may.
        """
        whole = cls(None, shortened(source, 300), remedy=remedy)
        values = sum(content.count(sign) for sign in (b",", b"[", b"{"))
        if len(content) > MAX_BYTES or values > MAX_VALUES:
            most = f"at most {MAX_BYTES:,} bytes and {MAX_VALUES:,} values"
            raise whole.refusal(f"must hold {most}", f"{len(content):,} and about {values:,}")
        try:
            return cls(json.loads(content), whole.source, remedy=remedy)
        except (ValueError, RecursionError) as err:
            why = "it is nested too deep" if isinstance(err, RecursionError) else shortened(err, 200)
            raise whole.refusal("must be JSON", why) from err

    def __getitem__(self, name: str) -> StatedValue:
        """The value of a field; there may be none of that name."""
        if not isinstance(self.value, dict):
            raise self._refusal("must be a mapping")
        return self._inner(self.value.get(name), f"{self.at}.{name}" if self.at else name)

    def __bool__(self) -> bool:
        """True if there is a value that is not empty."""
        return self.value not in (None, [], {}, "")

    def names(self) -> Iterator[str]:
        """The names of the fields of a mapping."""
        if not isinstance(self.value, dict) or len(self.value) > MAX_ITEMS:
            raise self._refusal(f"must be a mapping of at most {MAX_ITEMS:,} fields")
        return iter(self.value)

    def items(self) -> Iterator[StatedValue]:
        """The values of a list."""
        if not isinstance(self.value, list) or len(self.value) > MAX_ITEMS:
            raise self._refusal(f"must be a list of at most {MAX_ITEMS:,} values")
        return (self._inner(value, f"{self.at}[{place}]") for place, value in enumerate(self.value))

    def number(self, low: float = -math.inf, high: float = math.inf) -> float:
        """A number in a range, both ends in it; infinite only where an end is."""
        value = _INFINITE.get(self.value) if isinstance(self.value, str) else self.value
        try:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        except OverflowError:  # a whole number beyond the largest float
            number = math.nan
        if not low <= number <= high:
            raise self._refusal(f"must be a number{_range(low, high)}")
        return number

    def whole(self, low: int, high: int) -> int:
        """A whole number in a range, both ends in it."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not low <= self.value <= high:
            raise self._refusal(f"must be a whole number{_range(low, high)}")
        return self.value

    def wholes(self, low: int, high: int) -> list[int]:
        """The whole numbers of a list, each in a range."""
        return [item.whole(low, high) for item in self.items()]

    def text(self, most: int = 2_000) -> str:
        """A text of at most so many letters in one line that shows what it is: a longer one is cut."""
        if not isinstance(self.value, str):
            raise self._refusal("must be text")
        return shortened(self.value, most)

    def name(self) -> str:
        """A text that tells one thing from others, as it is."""
        if not isinstance(self.value, str) or len(self.value) > MAX_LETTERS:
            raise self._refusal(f"must be text of at most {MAX_LETTERS:,} letters")
        return self.value

    def one_of(self, kind: type[_Named]) -> _Named:
        """A member of an enumeration of texts."""
        known = {member.value: member for member in kind}
        if not isinstance(self.value, str) or self.value not in known:
            raise self._refusal(f"must be one of {', '.join(known)}")
        return known[self.value]

    def refusal(self, must: str, got: str) -> SpecError:
        """An error that says where the value stands, what must hold, what there is, and what to do."""
        at = f"{self.source}: {shortened(self.at, 200)}" if self.at else self.source
        return SpecError(f"{at} {must}, got {got}" + (f"; {self.remedy}" if self.remedy else ""))

    def _refusal(self, must: str) -> SpecError:
        value = self.value
        if isinstance(value, str):
            return self.refusal(must, repr(shortened(value)))
        kinds = {dict: "a mapping", list: "a list", type(None): "nothing"}
        return self.refusal(must, kinds.get(type(value)) or shortened(value))

    def _inner(self, value: Any, at: str) -> StatedValue:
        return StatedValue(value, self.source, at, self.remedy)


def _range(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    return f" >= {low:,}" if math.isinf(high) else f" in {low:,} .. {high:,}"
