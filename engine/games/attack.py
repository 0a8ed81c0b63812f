"""What an attack offers (registered as "attack"): the view it sees, and one score for each thing at stake in it."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.view import View

Seen = TypeVar("Seen", contravariant=True)


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
