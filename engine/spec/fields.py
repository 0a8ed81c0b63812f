"""What can be written of a part in a spec: its fields in words.

Types and defaults come from the dataclass, meanings from the `Attributes:` section of its docstring or of the class
that it inherits a field from.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

NEEDED = "needed"


@dataclass(frozen=True)
class DescribedField:
    """One field of a part, in words."""

    name: str  # what a spec calls it
    type: str  # its type as it is written in the source; for a nested part its kind: "a model"
    default: str  # what it is when left out; "needed" where it may not be
    meaning: str  # what the docstring says of it; "" where it says nothing


def described_fields(part: type) -> tuple[DescribedField, ...]:
    """The fields of a registered class in the order in which it declares them; none for a class without fields."""
    if not dataclasses.is_dataclass(part):
        return ()
    meanings = meanings_of(part)
    return tuple(
        DescribedField(field.name, _type_in_words(field), default_in_words(field), meanings.get(field.name, ""))
        for field in dataclasses.fields(part)
        if field.init
    )


def _type_in_words(field: dataclasses.Field[Any]) -> str:
    kind = field.metadata.get("kind")
    if kind is not None:
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return str(field.type) if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))


def default_in_words(field: dataclasses.Field[Any]) -> str:
    """What a field is when it is left out; `NEEDED` where it may not be."""
    if field.default is not dataclasses.MISSING:
        return field.default.value if isinstance(field.default, Enum) else str(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return str(field.default_factory())
    return NEEDED


def meanings_of(part: type) -> dict[str, str]:
    """The entries of the sections `Attributes:` of a class and of those it inherits from; its own come first."""
    found: dict[str, str] = {}
    for base in part.__mro__:
        section = re.search(r"^Attributes:\n((?:[ ]+.*\n?|\n)+)", inspect.cleandoc(base.__doc__ or ""), re.MULTILINE)
        if section:
            for name, text in re.findall(r"^    (\w+): ((?:.*\n?)(?:^ {5,}.*\n?)*)", section[1], re.MULTILINE):
                found.setdefault(name, " ".join(text.split()))
    return found
