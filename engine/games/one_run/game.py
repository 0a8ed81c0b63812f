"""The plan of games that need one training: trainings, and replays of each. It knows no model, no label, no proxy."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work, inlined, unit
from dpaudit.engine.games.one_run.rules import CanarySetup, OneRunRules, Replayed, RowsT
from dpaudit.engine.games.protocol import Played, Setting, require_units
from dpaudit.engine.games.reference import Reference
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute


@dataclass(frozen=True)
class OneRunGame(OneRunRules[RowsT]):
    """What the plans of all one-run games share."""

    def replays_of(
        self, setting: Setting, work: Work, rules: OneRunRules[RowsT], replayed: Any, number: int
    ) -> tuple[Unit, ...]:
        return work.split(
            play_replays,
            self.replays,
            self._replays_per_unit(self.canary_count(setting.parts.target), setting.rows_per_unit),
            rules,
            setting.informed_attack,
            replayed,
            design_seed=self.design_seed(setting, number),
            seed=setting.seed.child("replays"),
            label="replays",
            resources=setting.resources.without_gpu,
            offset=number * self.replays,
        )

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """Units at least, for a target set of so many rows and units of at most so many score rows; those scored."""
        replay_units = self.trainings * -(-self.replays // self._replays_per_unit(self.canaries or rows, rows_per_unit))
        return self.trainings + replay_units, replay_units

    def _replays_per_unit(self, canaries: int, rows_per_unit: int) -> int:
        """As many as make no more than so many score rows, and at least two units."""
        return max(1, min(rows_per_unit // canaries, -(-self.replays // 2)))

    def design_seed(self, setting: Setting, number: int) -> Seed:
        return setting.seed.child("design", number)

    def without_counts(self) -> Self:
        """The game without its numbers of replays and trainings: asking for more reuses what is finished."""
        return replace(self, replays=1, trainings=1)


@dataclass(frozen=True)
class ReleaseGame(OneRunGame[RowsT]):
    """A one-run game over whatever a mechanism gives out of whatever its rows are.

    A game says what the mechanism is asked for (`released`) and, where the attack sees something else than the release
    and the canaries, what it sees (`view`).
    """

    @abstractmethod
    def released(self, mechanism: Any, train: RowsT, canaries: RowsT, *, seed: Seed, compute: Compute) -> Any:
        """Runs the mechanism and gives what it releases: a frozen dataclass of arrays, tables and numbers.

        The annotation of what it gives must name the dataclass, which is what brings it to disk and back.

        Args:
            mechanism: What is audited.
            train: What it is run on.
            canaries: Rows that may be asked about, whether or not they are among `train`.
            seed: Of this run alone.
            compute: What may be used.
        Raises: TrainingError when this seed's training failed.
        """

    def play(self, setting: Setting, work: Work) -> Played:
        require_units(self.fewest_units(len(setting.parts.target), setting.rows_per_unit)[0])
        rules = self.without_counts()
        trainings: list[Unit] = []
        evidence: list[Unit] = []
        for number in range(self.trainings):
            ran = work.add(
                run_mechanism,
                rules,
                setting.mechanism,
                setting.required_part("target"),
                design_seed=self.design_seed(setting, number),
                seed=setting.seed.child("training", number),
                label=f"training {number + 1} of {self.trainings}",
                **setting.unit_options,
                returns=type(self).released,
            )
            trainings.append(ran)
            replayed = inlined(release_replayed, rules, setting.required_part("target"), ran)
            evidence += self.replays_of(setting, work, rules, replayed, number)
        return Played(
            tuple(evidence),
            trainings=tuple(trainings),
            reference=Reference(
                self.response(self.canaries_of(setting.parts.target)),
                self.canary_count(setting.parts.target),
                "canaries",
                self.replays * self.trainings,
            ),
            replays=self.replays * self.trainings,
            observational=self.is_observational(setting.parts.target, self.design_seed(setting, 0)),
        )


@unit
def run_mechanism(rules: Any, mechanism: Any, target: Any, compute: Compute, *, design_seed: Seed, seed: Seed) -> Any:
    """One run of the mechanism, and what it gave out, as the game asks for it."""
    train = rules.intervened(target, design_seed)
    return rules.released(mechanism, train, rules.canaries_of(target), seed=seed, compute=compute)


@unit
def release_replayed(rules: OneRunRules[RowsT], target: RowsT, release: Any) -> Replayed[RowsT]:
    canaries = rules.canaries_of(target)
    return Replayed(CanarySetup(canaries, canaries.take(np.arange(0))), release)


@unit
def play_replays(
    rules: OneRunRules[RowsT],
    attack: Any,
    replayed: Replayed[RowsT],
    *,
    design_seed: Seed,
    seed: Seed,
    first: int,
    last: int,
) -> Iterator[Scores]:
    """Replays of one training: fresh bits and draws, the hint, the attack's scores.

    Each replay draws from a child of `seed`, the training data were drawn from `design_seed`.
    """
    for replay, played in scored_replays(rules, attack, replayed, design_seed, seed, range(first, last)):
        yield scored(replay, played.bits, played.score)


@dataclass(frozen=True, eq=False)
class ScoredReplay:
    """One round of a game as the adversary sees it, with the bits."""

    view: Any
    score: NDArray[np.float64]  # what the attack says of m canaries
    bits: NDArray[np.bool_]  # the truth


def scored_replays(
    rules: OneRunRules[RowsT],
    attack: Any,
    replayed: Replayed[RowsT],
    design_seed: Seed,
    seed: Seed,
    numbers: Iterable[int],
) -> Iterator[tuple[int, ScoredReplay]]:
    design = rules.design(replayed.setup.canaries, design_seed.rng())
    for number in numbers:
        draw = rules.draw(replayed.setup, design, seed.child(number).rng())
        reveal = rules.hint(replayed.setup, design, draw)
        view = rules.view(replayed, reveal)
        yield number, ScoredReplay(view, attack.score(copy.deepcopy(view)), draw.bits)
