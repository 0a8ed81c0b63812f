"""Plans of one-run games: trainings and replays of each, independent of models, labels and proxies."""

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
    """Base of the plans of all one-run games."""

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
        """Return lower limits of the number of units and of those with scores, for a target set of `rows` rows."""
        replay_units = self.trainings * -(-self.replays // self._replays_per_unit(self.canaries or rows, rows_per_unit))
        return self.trainings + replay_units, replay_units

    def _replays_per_unit(self, canaries: int, rows_per_unit: int) -> int:
        """Return the number of replays in a unit: at most `rows_per_unit` score rows, and at least two units."""
        return max(1, min(rows_per_unit // canaries, -(-self.replays // 2)))

    def design_seed(self, setting: Setting, number: int) -> Seed:
        return setting.seed.child("design", number)

    def without_counts(self) -> Self:
        """Return the game with 1 replay and training, so that unit keys do not depend on these numbers."""
        return replace(self, replays=1, trainings=1)


@dataclass(frozen=True)
class ReleaseGame(OneRunGame[RowsT]):
    """A one-run game for any kind of release and rows.

    A subclass defines how the mechanism is run (`released`) and, if the attack sees more than the release and the
    canaries, its view (`view`).
    """

    @abstractmethod
    def released(self, mechanism: Any, train: RowsT, canaries: RowsT, *, seed: Seed, compute: Compute) -> Any:
        """Run the mechanism and return its release: a frozen dataclass of arrays, tables and numbers.

        The return annotation must name the dataclass, from which the release is stored and restored.

        Args:
            mechanism: The audited mechanism.
            train: Rows on which it runs.
            canaries: Rows that may be shown, in `train` or not.
            seed: Seed of this run.
            compute: Available devices and threads.
        Raises: TrainingError if the training with this seed failed.
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
    """Run the mechanism once and return its release."""
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
    """Yield the scores of replays `first` to `last` - 1 of one training.

    Each replay draws from a child of `seed`; the training data were drawn from `design_seed`.
    """
    for replay, played in scored_replays(rules, attack, replayed, design_seed, seed, range(first, last)):
        yield scored(replay, played.bits, played.score)


@dataclass(frozen=True, eq=False)
class ScoredReplay:
    """A replay: the attacker's view, its scores and the bits."""

    view: Any
    score: NDArray[np.float64]  # scores of m canaries
    bits: NDArray[np.bool_]  # the secret bits


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
