"""What a game (registered as "game") is planned from, and what it hands the planner.

Source: arXiv:2511.14084, Algorithm 1 (after Swanberg et al., 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Resources, Unit
from dpaudit.actors.work import Shared, Work
from dpaudit.claims import Claim
from dpaudit.engine.data.partition import Parts
from dpaudit.engine.games.attack import InformedAttack
from dpaudit.engine.games.fits import Fits, Reading
from dpaudit.engine.games.reference import Reference
from dpaudit.errors import SpecError, shortened

if TYPE_CHECKING:
    from dpaudit.engine.games.whole_training import WholeTraining

MOST_UNITS = 100_000
"""Of a plan: about a minute of planning."""


def require_units(count: int) -> None:
    """Refuses a plan of more units than can be planned in reasonable time; games ask before they make them.

    Raises: SpecError.
    """
    if count > MOST_UNITS:
        raise SpecError(
            f"a plan must have at most {MOST_UNITS:,} units, this one has {shortened(f'{count:,}')} or more; ask for "
            "fewer replays, trainings or trials"
        )


@dataclass(frozen=True)
class Setting:
    """What a game is planned from.

    Attributes:
        mechanism: What is audited.
        proxy: Where the adversary's reference comes from.
        attack: The adversary.
        data: The data set's description (not its rows).
        divided_at_random: Whether rows play their part by the draw of the audit, not by their place in the data.
        parts: Which rows are the training set, the reference set and so on, with the shared names of each.
        seed: The audit's seed.
        resources: What one unit occupies.
        rows_per_unit: Score rows one unit should make at most: seconds of work, and memory where scores are kept.
        reading: How the scores will be read.
        after: Keys of units that must be finished before the mechanism is run.
    """

    mechanism: Any
    proxy: Any
    attack: Any
    data: Any
    parts: Parts
    divided_at_random: bool
    seed: Seed
    resources: Resources
    rows_per_unit: int
    reading: Reading
    after: tuple[str, ...] = ()

    def given(self, part: str) -> Any:
        """What stands for a part of the data in the arguments of units; None when the part has no rows."""
        name = self.parts.name(part)
        return Shared(name) if name else None

    def required(self, part: str) -> Any:
        """The same for a part that must have rows.

        Raises: SpecError when it has none.
        """
        given = self.given(part)
        if given is None:
            raise SpecError(f"the {part} part of the data is empty; give `split.{part}` a share above 0")
        return given

    @property
    def informed_attack(self) -> Any:
        """The attack, told which mechanism it attacks if it asks for it.

        Raises: SpecError when the mechanism does not tell what the attack must know.
        """
        if isinstance(self.attack, InformedAttack):
            return self.attack.for_mechanism(self.mechanism, getattr(self.parts.target, "classes", 0))
        return self.attack


@dataclass(frozen=True)
class Played:
    """What a game planned, and what reading it needs to know.

    Attributes:
        evidence: Units that give the evidence, in the order in which it is read.
        trainings: Units that ran the mechanism.
        control: Units that play the game where the mechanism remembers nothing, one a distinguisher.
        ceiling: Units that play the game against a mechanism without privacy, where that is played.
        choices: Units whose notes say what was chosen on search data.
        shadows: Units that trained shadow models: no evidence comes from these trainings.
        claim: What the mechanism promises of a trial, where that is not what it promises of the whole.
        whole: What a finding about a part, such as a step, means for the whole; None where a finding is about it.
        reference: What the game's power is planned with; None where it cannot be told.
        replays: How many pieces of evidence there are if nothing fails.
        observational: Whether the training data are left as they are (Definition 4), found by comparing them.
        conditional: Whether the scores take a proxy for the truth: a bound from them holds only as far as it does.
        controlled_on: What the control is played on, in words.
    """

    evidence: tuple[Unit, ...]
    trainings: tuple[Unit, ...] = ()
    control: tuple[Unit, ...] = ()
    ceiling: tuple[Unit, ...] = ()
    choices: tuple[Unit, ...] = ()
    shadows: tuple[Unit, ...] = ()
    claim: Claim | None = None
    whole: WholeTraining | None = None
    reference: Reference | None = None
    replays: int = 1
    observational: bool = False
    conditional: bool = False
    controlled_on: str = ""


@runtime_checkable
class Foreseen(Protocol):
    """A game that knows before there are data how many units it makes at least."""

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """Units at least, for a target set of so many rows and units of at most so many score rows; those scored."""
        ...


class Game(Protocol):
    """An experiment (registered as "game")."""

    fits: ClassVar[Fits]
    """What it goes together with."""

    def play(self, setting: Setting, work: Work) -> Played:
        """Adds every unit, each with its seed; nothing runs."""
        ...
