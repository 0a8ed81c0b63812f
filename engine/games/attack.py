"""What an attack offers (registered as "attack"): the view it sees, and one score for each thing at stake in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Rows

Seen = TypeVar("Seen", contravariant=True)
Released = TypeVar("Released")
Candidate = TypeVar("Candidate", bound=Rows)


class View(Protocol):
    """What the adversary of some game sees; nothing in it tells the truth that is at stake."""

    shows: ClassVar[str]
    """The same in words, for messages: "the game shows ..."."""


@dataclass(frozen=True, eq=False)
class Candidates(Generic[Released, Candidate]):
    """What a mechanism gave out, and rows of which it is asked whether they were among its data.

    Attributes:
        release: What was given out, of the game's own type: a table, losses, answers.
        candidates: The rows that are asked about, m of them.
    """

    release: Released
    candidates: Candidate
    shows: ClassVar[str] = "what a mechanism gave out, and candidates for its data"


class Attack(Protocol[Seen]):
    """The adversary: from what it sees to scores."""

    view: ClassVar[type[View]]
    """The class of what it sees; a game that shows something else is refused."""

    def score(self, view: Seen) -> NDArray[np.float64]:
        """One score for each canary or trial; larger = more likely world 1 (the training label, or a member)."""
        ...


@runtime_checkable
class InformedAttack(Protocol):
    """An attack that knows which mechanism it attacks, as the adversary of Algorithm 1 does."""

    def for_mechanism(self, mechanism: Any, classes: int) -> Attack[Any]:
        """The attack on this mechanism.

        Raises: SpecError when the mechanism does not tell what the attack must know.
        """
        ...
