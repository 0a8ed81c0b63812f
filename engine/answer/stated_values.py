"""Validated reading of untrusted JSON files such as `bounds.json`, within limits of size, and its checksum.

Each value is read as a stated type within a stated range. A wrong value raises SpecError with the file and the place.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from dpaudit.actors.events import Event, EventKind
from dpaudit.errors import SpecError, shortened

MAX_BYTES = 64 << 20  # size of a file
MAX_VALUES = 4_000_000  # values of a file, up to 80 bytes of memory each
MAX_ITEMS = 20_000  # items of a list: twice as many as a spec may have audits
MAX_LETTERS = 200_000  # characters of a name, as in a spec
_INFINITE = {"inf": math.inf, "-inf": -math.inf}  # JSON has no infinite numbers, so reports write them as text

_EnumT = TypeVar("_EnumT", bound=Enum)


@dataclass(frozen=True)
class StatedValue:
    """A value of an untrusted file with its place.

    Attributes:
        value: The value as parsed from JSON; None if it is missing.
        source: The file name in messages.
        at: Path to the value, such as "results[0].claim".
        remedy: What a user can do about a wrong value.
    """

    value: Any
    source: str
    at: str = ""
    remedy: str = ""

    @classmethod
    def parse(cls, content: bytes, source: str, *, remedy: str = "") -> StatedValue:
        """Parse the content of a file.

        Raises: SpecError if it is no JSON or exceeds the limits.
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
        """Return a field of a mapping; its value is None if the field is missing."""
        if not isinstance(self.value, dict):
            raise self._refusal("must be a mapping")
        return self._inner(self.value.get(name), f"{self.at}.{name}" if self.at else name)

    def __bool__(self) -> bool:
        """True if there is a value that is not empty."""
        return self.value not in (None, [], {}, "")

    def names(self) -> Iterator[str]:
        """Return an iterator over the field names of a mapping."""
        if not isinstance(self.value, dict) or len(self.value) > MAX_ITEMS:
            raise self._refusal(f"must be a mapping of at most {MAX_ITEMS:,} fields")
        return iter(self.value)

    def items(self) -> Iterator[StatedValue]:
        """Return an iterator over the values of a list."""
        if not isinstance(self.value, list) or len(self.value) > MAX_ITEMS:
            raise self._refusal(f"must be a list of at most {MAX_ITEMS:,} values")
        return (self._inner(value, f"{self.at}[{place}]") for place, value in enumerate(self.value))

    def number(self, low: float = -math.inf, high: float = math.inf) -> float:
        """Return a number in [low, high]; it may be infinite only if the limit is."""
        value = _INFINITE.get(self.value) if isinstance(self.value, str) else self.value
        try:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        except OverflowError:  # an integer beyond the largest float
            number = math.nan
        if not low <= number <= high:
            raise self._refusal(f"must be a number{_range(low, high)}")
        return number

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not low <= self.value <= high:
            raise self._refusal(f"must be a whole number{_range(low, high)}")
        return self.value

    def integers(self, low: int, high: int) -> list[int]:
        """Return a list of integers, each in [low, high]."""
        return [item.integer(low, high) for item in self.items()]

    def text(self, most: int = 2_000) -> str:
        """Return a text in one line, shortened to `most` characters."""
        if not isinstance(self.value, str):
            raise self._refusal("must be text")
        return shortened(self.value, most)

    def name(self) -> str:
        """Return an identifying text unchanged."""
        if not isinstance(self.value, str) or len(self.value) > MAX_LETTERS:
            raise self._refusal(f"must be text of at most {MAX_LETTERS:,} letters")
        return self.value

    def member(self, kind: type[_EnumT]) -> _EnumT:
        """Return a member of an enumeration, given by its value."""
        members = {member.value: member for member in kind}
        if not isinstance(self.value, str) or self.value not in members:
            raise self._refusal(f"must be one of {', '.join(members)}")
        return members[self.value]

    def refusal(self, must: str, got: str) -> SpecError:
        """Return an error that states the place, the requirement, the value and the remedy."""
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


def checksum_note(bounds: bytes) -> str:
    """Return the event text with the checksum of a `bounds.json`.

    It is in the last event of a run: an edit of either file is noticed, an edit of both is not.
    """
    return f"bounds.json sha256:{hashlib.sha256(bounds).hexdigest()}"


def last_checksum_note(events: Iterable[Event]) -> str:
    """Return the last event text with a checksum; "" if there is none, as in runs of earlier versions."""
    notes = [event.detail for event in events if event.kind in (EventKind.FINISHED, EventKind.REPORTED)]
    return notes[-1] if notes else ""
