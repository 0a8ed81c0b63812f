"""Names in a store as files below a folder: a store takes any text for a name, a folder must not."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

from dpaudit.errors import RunError, printable, shortened

MOST_BYTES = 255
"""Of one part of a name, on the file systems there are."""


def require_below(names: Collection[str], place: object) -> None:
    """Refuses names that are no files below a folder, each for itself on every file system.

    Args:
        names: Of all files of a place, from it.
        place: What messages call it.
    Raises: RunError naming the first that leaves the folder, is the folder of another, or differs by case alone.
    """
    spelled: dict[str, str] = {}
    files = set(names)
    for name in sorted(files):
        parts = name.split("/")
        if not all(_is_plain(part) for part in parts):
            raise _refusal(place, name, "which is no name of a file below a folder")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            other = spelled.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
            if other != path:
                raise _refusal(place, name, f"which differs by case alone from {printable(shortened(other))}")
            if end < len(parts) and path in files:
                raise _refusal(place, name, "whose folder is a file")


def _is_plain(part: str) -> bool:
    """Whether a part of a name is one, and no way up, to the root, or to another drive."""
    return (
        part not in ("", ".", "..")
        and not any(sign in part for sign in "\\:")
        and part.isprintable()
        and len(part.encode(errors="replace")) <= MOST_BYTES
    )


def _refusal(place: object, name: str, why: str) -> RunError:
    return RunError(
        f"{shortened(place)} must hold files that can be copied below a folder, it names one "
        f"{printable(shortened(name))!r}, {why}; nothing was copied"
    )
