"""The plan of games that need one training: trainings, and replays of each. It knows no model, no label, no proxy."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work, inlined
from dpaudit.engine.games.one_run.rules import OneRunRules, R
from dpaudit.engine.games.one_run.work import play_replays, release_replayed, run_mechanism
from dpaudit.engine.games.protocol import Played, Setting, require_units
from dpaudit.engine.games.reference import Reference
from dpaudit.mechanisms.compute import Compute


@dataclass(frozen=True)
class OneRunGame(OneRunRules[R]):
    """What the plans of all one-run games share."""

    def replays_of(
        self, setting: Setting, work: Work, rules: OneRunRules[R], replayed: Any, number: int
    ) -> tuple[Unit, ...]:
        """The replays of one training."""
        return work.split(
            play_replays,
            self.replays,
            self._replays_per_unit(self.canary_count(setting.parts.target), setting.rows_per_unit),
            rules,
            setting.informed_attack,
            replayed,
            design_seed=seed_of_design(setting, number),
            seed=setting.seed.child("replays"),
            label="replays",
            resources=setting.resources.on_cpus,
            offset=number * self.replays,
        )

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """Trainings and their replays; the replays."""
        plays = self.trainings * -(-self.replays // self._replays_per_unit(self.canaries or rows, rows_per_unit))
        return self.trainings + plays, plays

    def _replays_per_unit(self, canaries: int, rows_per_unit: int) -> int:
        """As many as make no more than so many score rows, and at least two units."""
        return max(1, min(rows_per_unit // canaries, -(-self.replays // 2)))

    def without_counts(self) -> Self:
        """The game without its numbers of replays and trainings: asking for more reuses what is finished."""
        return replace(self, replays=1, trainings=1)


@dataclass(frozen=True)
class ReleaseGame(OneRunGame[R]):
    """A one-run game over whatever a mechanism gives out of whatever its rows are.

    A game says what the mechanism is asked for (`released`) and, where the attack sees something else than the release
    and the canaries, what it sees (`view`).
    """

    @abstractmethod
    def released(self, mechanism: Any, train: R, canaries: R, *, seed: Seed, compute: Compute) -> Any:
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
        """Trainings, replays."""
        require_units(self.fewest_units(len(setting.parts.target), setting.rows_per_unit)[0])
        rules = self.without_counts()
        trainings: list[Unit] = []
        evidence: list[Unit] = []
        for number in range(self.trainings):
            ran = work.add(
                run_mechanism,
                rules,
                setting.mechanism,
                setting.required("target"),
                design_seed=seed_of_design(setting, number),
                seed=setting.seed.child("training", number),
                label=f"training {number + 1} of {self.trainings}",
                resources=setting.resources,
                after=setting.after,
                gives=type(self).released,
            )
            trainings.append(ran)
            replayed = inlined(release_replayed, rules, setting.required("target"), ran)
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
            observational=self.is_observational(setting.parts.target, seed_of_design(setting, 0)),
        )


def seed_of_design(setting: Setting, number: int) -> Seed:
    """Of the draws that decide the data of one training."""
    return setting.seed.child("design", number)
