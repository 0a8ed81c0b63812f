"""The plan of games that need one training: reference, trainings, replays, and the control on held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.engine.games.fits import LABEL_MECHANISMS
from dpaudit.engine.games.one_run_rules import OneRunRules
from dpaudit.engine.games.one_run_units import (
    ObserveReference,
    PlayDistinguisher,
    PlayHeldOut,
    PlayProxyAlone,
    PlayReplays,
    PlayTruth,
    ReleaseLabels,
    TrainModel,
)
from dpaudit.engine.games.protocol import GamePlan, Setting, require_units
from dpaudit.engine.games.reference import Reference
from dpaudit.engine.spec.partition import shared_name
from dpaudit.engine.views.answers import Predictions, Releases
from dpaudit.errors import SpecError

CONTROL_REPLAYS = 20
"""Replays on held-out rows at most: their median moves little beyond that."""
CEILING_REPLAYS = 20
"""Replays against a mechanism that hides nothing at most: nothing but the other labels drawn differs between them."""


@dataclass(frozen=True)
class OneRunGame(OneRunRules):
    """A one-run game: the rules, and the plan that plays them."""

    controlled_on: ClassVar[str] = "rows the mechanism never saw,"

    def plan(self, setting: Setting) -> GamePlan:
        """Reference, trainings, replays.

        Raises: SpecError when a part of the data the game needs is empty.
        """
        if setting.proxy is None:
            raise SpecError("this game needs a `proxy`: where the adversary's reference model comes from")
        count = self.canary_count(setting.parts.target)
        require_units(self.fewest_units(len(setting.parts.target), setting.rows_per_unit)[0])
        drawn = self.draw_fresh(count, setting.seed.child("fresh").rng())
        shared = {} if drawn is None else {shared_name("fresh", drawn): drawn}
        self.fresh_of(setting.parts.test if drawn is None else drawn, count)
        reference = Unit(
            ObserveReference(self._without_counts(), setting.proxy, setting.data, setting.seed.child("reference")),
            "reference model",
            (*setting.parts.names("target", "reference", "test"), *shared),
            setting.after,
            resources=setting.resources,
        )
        units, scores, trainings = [reference], [], []
        for number in range(self.trainings):
            training = self._training_unit(setting, number, tuple(shared))
            replays = self._replay_units(setting, number, reference.key, training.key, tuple(shared))
            trainings.append(training.key)
            units += [training, *replays]
            scores += [unit.key for unit in replays]
        controls = self._control_units(setting, reference.key, trainings[0], tuple(shared))
        ceilings = self._ceiling_units(setting, reference.key, tuple(shared))
        return GamePlan(
            units=(*units, *controls, *ceilings),
            scores=tuple(scores),
            trainings=tuple(trainings),
            observational=self.is_observational(setting.parts.target, _design_seed(setting, 0)),
            reading=setting.reading,
            controls=tuple(control.key for control in controls),
            conditional=self.rests_on_proxy(setting),
            controlled_on=self.controlled_on,
            ceilings=tuple(ceiling.key for ceiling in ceilings),
            reference=self._reference(setting),
            shared=shared,
            replays=self.replays * self.trainings,
        )

    def _training_unit(self, setting: Setting, number: int, drawn: tuple[str, ...]) -> Unit:
        run = ReleaseLabels if self._plays_releases(setting) else TrainModel
        seed = setting.seed.child("training", number)
        return Unit(
            run(self._without_counts(), setting.mechanism, seed, _design_seed(setting, number)),
            f"training {number + 1} of {self.trainings}",
            (*setting.parts.names("target", "test", "validation", *self._reference_part()), *drawn),
            setting.after,
            resources=setting.resources if run is TrainModel else setting.resources.on_cpus,
        )

    def _replay_units(
        self, setting: Setting, number: int, reference: str, training: str, drawn: tuple[str, ...]
    ) -> list[Unit]:
        """The replays of one training."""
        step = self._replays_per_unit(self.canary_count(setting.parts.target), setting.rows_per_unit)
        offset = number * self.replays
        play = self._replays(PlayReplays, setting, number, reference, training)
        return [
            Unit(
                replace(play, first=offset + first, last=offset + min(first + step, self.replays)),
                f"replays {offset + first + 1}-{offset + min(first + step, self.replays)}",
                (*setting.parts.names("target", "test", *self._reference_part()), *drawn),
                (reference, training),
                setting.resources.on_cpus,
            )
            for first in range(0, self.replays, step)
        ]

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """Trainings and their replays; the replays."""
        plays = self.trainings * -(-self.replays // self._replays_per_unit(self.canaries or rows, rows_per_unit))
        return self.trainings + plays, plays

    def _replays_per_unit(self, canaries: int, rows_per_unit: int) -> int:
        """As many as make no more than so many score rows, and at least two units."""
        return max(1, min(rows_per_unit // canaries, -(-self.replays // 2)))

    def rests_on_proxy(self, setting: Setting) -> bool:
        """Whether the bound holds only as far as a proxy has the law of the truth."""
        return False

    def control_plays(self, setting: Setting, reference: str, training: str) -> list[tuple[str, PlayReplays]]:
        """What is played where the mechanism remembers nothing, in words and the last one best informed.

        Here: the game on held-out rows, with the proxy alone and, where a model answers for them too, with the first
        trained model at hand.
        """
        if not self.has_control() or not len(setting.parts.test):
            return []
        alone = ("proxy alone", self._replays(PlayProxyAlone, setting, 0, reference, reference))
        if self._plays_releases(setting):  # a label mechanism answers for the rows it was given only
            return [alone]
        return [alone, ("model and proxy", self._replays(PlayHeldOut, setting, 0, reference, training))]

    def _control_units(self, setting: Setting, reference: str, training: str, drawn: tuple[str, ...]) -> list[Unit]:
        """The controls, each once with the attack, and the best informed once more with a classifier."""
        seed, last = setting.seed.child("held-out"), min(self.replays, CONTROL_REPLAYS)
        plays = [
            (what, replace(play, seed=seed, last=last))
            for what, play in self.control_plays(setting, reference, training)
        ]
        tasks: list[tuple[str, PlayReplays, Any]] = [(what, play, play) for what, play in plays]
        tasks += [(f"a classifier, {what}", play, PlayDistinguisher(play)) for what, play in plays[-1:]]
        names = (*setting.parts.names("target", "test", *self._reference_part()), *drawn)
        return [
            Unit(
                task,
                f"control, {what}",
                names,
                tuple(dict.fromkeys((play.reference, play.training))),
                setting.resources.on_cpus,
            )
            for what, play, task in tasks
        ]

    def _ceiling_units(self, setting: Setting, reference: str, drawn: tuple[str, ...]) -> list[Unit]:
        """The game against a mechanism that hides nothing, where that has to be played."""
        if not self.answers_with_labels():
            return []
        last = min(self.replays * self.trainings, CEILING_REPLAYS)
        play = replace(self._replays(PlayTruth, setting, 0, reference, reference), last=last)
        names = (*setting.parts.names("target", "test", *self._reference_part()), *drawn)
        label = "what a mechanism that hides nothing would show"
        return [Unit(play, label, names, (reference,), setting.resources.on_cpus)]

    def _reference(self, setting: Setting) -> Reference:
        """What the game's power is planned with."""
        canaries = self.canaries_of(setting.parts.target)
        asked = self.proxy_task(canaries, setting.parts.reference if self.needs_reference() else None)
        return Reference(self.response(asked), len(canaries), "canaries", self.replays * self.trainings)

    def _replays(
        self, play: type[PlayReplays], setting: Setting, number: int, reference: str, training: str
    ) -> PlayReplays:
        """The first replay of a training."""
        return play(
            self._without_counts(),
            setting.informed_attack,
            Releases if self._plays_releases(setting) else Predictions,
            _design_seed(setting, number),
            setting.seed.child("replays"),
            first=0,
            last=1,
            reference=reference,
            training=training,
        )

    def _plays_releases(self, setting: Setting) -> bool:
        return self.fits.face_of(setting.mechanism) is LABEL_MECHANISMS

    def _reference_part(self) -> tuple[str, ...]:
        return ("reference",) if self.needs_reference() else ()

    def _without_counts(self) -> Self:
        """The game without its numbers of replays and trainings: asking for more reuses what is finished."""
        return replace(self, replays=1, trainings=1)


def _design_seed(setting: Setting, number: int) -> Seed:
    return setting.seed.child("design", number)
