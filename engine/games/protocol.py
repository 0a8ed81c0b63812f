"""What a game (registered as "game") is planned from, and what it hands the planner.

Source: arXiv:2511.14084, Algorithm 1 (after Swanberg et al., 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Resources, Unit
from dpaudit.claims import Claim
from dpaudit.engine.attacks.protocol import InformedAttack
from dpaudit.engine.findings.whole_training import WholeTraining
from dpaudit.engine.games.fits import Fits, Reading
from dpaudit.engine.games.reference import Reference
from dpaudit.engine.spec.partition import Parts
from dpaudit.errors import SpecError, shortened
from dpaudit.mechanisms.examples import Examples

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

    @property
    def informed_attack(self) -> Any:
        """The attack, told which mechanism it attacks if it asks for it.

        Raises: SpecError when the mechanism does not tell what the attack must know.
        """
        if isinstance(self.attack, InformedAttack):
            return self.attack.for_mechanism(self.mechanism, self.parts.target.classes)
        return self.attack


@dataclass(frozen=True)
class GamePlan:
    """The units of one game.

    Attributes:
        units: All of them, each after those it needs.
        scores: Keys of the units whose tables are score tables, in the order of their rows.
        trainings: Keys of the units that ran the mechanism.
        observational: Whether the training data are left as they are (Definition 4), found by comparing them.
        reading: How the scores are read.
        controls: Keys of the units that play the game where the mechanism remembers nothing, one a distinguisher.
        conditional: Whether the scores take a proxy for the truth: a bound from them holds only as far as it does.
        controlled_on: What the controls were played on, in words.
        ceilings: Keys of the units that play the game against a mechanism that answers with what is at stake; none
            where `reference` says what such a mechanism shows.
        reference: What the game's power is planned with; None where there is no such mechanism.
        shared: Large inputs the game brings beside the parts of the data, by name.
        replays: How many replays there are in all, >= 1; trials that are read together are one.
        claim: What is tested, where it is a part of what the mechanism promises; None = the promise itself.
        whole: What that part belongs to; None where there is no part.
        told: Keys of units that chose something, and say so in the metadata `told` of their tables.
    """

    units: tuple[Unit, ...]
    scores: tuple[str, ...]
    trainings: tuple[str, ...]
    observational: bool
    reading: Reading
    controls: tuple[str, ...] = ()
    conditional: bool = False
    controlled_on: str = ""
    ceilings: tuple[str, ...] = ()
    reference: Reference | None = None
    shared: Mapping[str, Examples] = field(default_factory=dict)
    replays: int = 1
    claim: Claim | None = None
    whole: WholeTraining | None = None
    told: tuple[str, ...] = ()


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

    def plan(self, setting: Setting) -> GamePlan:
        """Every unit, each with its seed; nothing runs."""
        ...
