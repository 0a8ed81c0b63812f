"""What every view has in common."""

from __future__ import annotations

from typing import ClassVar, Protocol


class View(Protocol):
    """What the adversary of some game sees; nothing in it tells the truth that is at stake."""

    shows: ClassVar[str]
    """The same in words, for messages: "the game shows ..."."""
