"""The plan of one-run games about labelled examples: reference, trainings, replays, control on held-out rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work, inlined
from dpaudit.engine.data.partition import shared_name
from dpaudit.engine.games.fits import LABEL_MECHANISMS
from dpaudit.engine.games.one_run.answers import Answers, LabelRelease, Predictions
from dpaudit.engine.games.one_run.game import OneRunGame, seed_of_design
from dpaudit.engine.games.one_run.rules import ProxyRules
from dpaudit.engine.games.one_run.work import (
    ask_proxy,
    canaries_replayed,
    held_out_replayed,
    play_distinguisher,
    play_replays,
    queries_of,
    release_labels,
    silence,
    train_model,
    truth,
)
from dpaudit.engine.games.protocol import Played, Setting, require_units
from dpaudit.engine.games.reference import Reference
from dpaudit.errors import SpecError
from dpaudit.mechanisms.examples import Examples

CONTROL_REPLAYS = 20
"""Replays on held-out rows at most: their median moves little beyond that."""
CEILING_REPLAYS = 20
"""Replays against a mechanism without privacy at most: nothing but the other labels drawn differs between them."""


@dataclass(frozen=True)
class Asked:
    """What may be replayed in a game: the answers of both models, or others in place of the mechanism's.

    Each method gives what stands for it in the arguments of a unit.

    Attributes:
        rules: The game's, without its numbers of replays and trainings.
        queries: Stands for the points both models are asked about.
        reference: The unit that asked the proxy.
        kind: Of the mechanism's answers.
    """

    rules: ProxyRules
    queries: Any
    reference: Unit
    kind: type[Answers]

    def canaries(self, answers: Any) -> Any:
        """The canaries, or fresh points in their place, with these answers."""
        return inlined(canaries_replayed, self.rules, self.queries, self.reference, answers)

    def held_out(self, answers: Any) -> Any:
        """Rows the mechanism never saw, with these answers."""
        return inlined(held_out_replayed, self.rules, self.queries, self.reference, answers)

    def silence(self) -> Any:
        """Answers that say nothing."""
        return inlined(silence, self.kind, self.reference)

    def truth(self, design_seed: Seed) -> Any:
        """Answers of a mechanism without privacy."""
        return inlined(truth, self.rules, self.kind, self.queries, design_seed=design_seed)


@dataclass(frozen=True)
class ProxyGame(ProxyRules, OneRunGame[Examples]):
    """A one-run game whose adversary has a reference of its own: what the spec's proxy says of what is at stake."""

    controlled_on: ClassVar[str] = "rows the mechanism never saw,"

    def play(self, setting: Setting, work: Work) -> Played:
        """Reference, trainings, replays.

        Raises: SpecError when a part of the data the game needs is empty.
        """
        if setting.proxy is None:
            raise SpecError("this game needs a `proxy`: where the adversary's reference model comes from")
        asked = self._asked(setting, work)
        trainings: list[Unit] = []
        evidence: list[Unit] = []
        for number in range(self.trainings):
            trained = self._training(setting, work, asked, number)
            trainings.append(trained)
            evidence += self.replays_of(setting, work, asked.rules, asked.canaries(trained), number)
        return Played(
            tuple(evidence),
            trainings=tuple(trainings),
            control=self._control(setting, work, asked, trainings[0]),
            ceiling=self._ceiling(setting, work, asked),
            reference=self._reference(setting),
            replays=self.replays * self.trainings,
            observational=self.is_observational(setting.parts.target, seed_of_design(setting, 0)),
            conditional=self.rests_on_proxy(setting),
            controlled_on=self.controlled_on,
        )

    def _asked(self, setting: Setting, work: Work) -> Asked:
        """The points, and what the proxy says of them."""
        count = self.canary_count(setting.parts.target)
        require_units(self.fewest_units(len(setting.parts.target), setting.rows_per_unit)[0])
        drawn = self.draw_fresh(count, setting.seed.child("fresh").rng())
        self.fresh_of(setting.parts.test if drawn is None else drawn, count)
        rules = self.without_counts()
        queries = inlined(
            queries_of,
            rules,
            setting.required("target"),
            setting.given("test"),
            None if drawn is None else work.share(shared_name("fresh", drawn), drawn),
            setting.given("reference") if self.needs_reference() else None,
        )
        reference = work.add(
            ask_proxy,
            rules,
            setting.proxy,
            setting.data,
            queries,
            setting.given("reference"),
            seed=setting.seed.child("reference"),
            label="reference model",
            resources=setting.resources,
            after=setting.after,
        )
        return Asked(rules, queries, reference, LabelRelease if self._plays_releases(setting) else Predictions)

    def _training(self, setting: Setting, work: Work, asked: Asked, number: int) -> Unit:
        """One run of the mechanism."""
        design_seed, seed = seed_of_design(setting, number), setting.seed.child("training", number)
        label, target = f"training {number + 1} of {self.trainings}", setting.required("target")
        if self._plays_releases(setting):
            return work.add(
                release_labels,
                asked.rules,
                setting.mechanism,
                target,
                design_seed=design_seed,
                seed=seed,
                label=label,
                resources=setting.resources.on_cpus,
                after=setting.after,
            )
        return work.add(
            train_model,
            asked.rules,
            setting.mechanism,
            asked.queries,
            target,
            setting.given("test"),
            setting.given("validation"),
            design_seed=design_seed,
            seed=seed,
            label=label,
            resources=setting.resources,
            after=setting.after,
        )

    def rests_on_proxy(self, setting: Setting) -> bool:
        """Whether the bound holds only as far as a proxy has the law of the truth."""
        return False

    def control_replays(self, setting: Setting, asked: Asked, trained: Unit) -> list[tuple[str, Any]]:
        """What is replayed where the mechanism remembers nothing, in words and the last one best informed.

        Here: held-out rows, with the proxy alone and, where a model answers for them too, with the first trained model
        at hand.
        """
        if not self.has_control() or not len(setting.parts.test):
            return []
        alone = ("proxy alone", asked.held_out(asked.silence()))
        if self._plays_releases(setting):  # a label mechanism answers for the rows it was given only
            return [alone]
        return [alone, ("model and proxy", asked.held_out(trained))]

    def _control(self, setting: Setting, work: Work, asked: Asked, trained: Unit) -> tuple[Unit, ...]:
        """The controls, each once with the attack, and the best informed once more with a classifier."""
        found = self.control_replays(setting, asked, trained)
        plays: list[tuple[Any, str, Any]] = [(play_replays, what, replayed) for what, replayed in found]
        plays += [(play_distinguisher, f"a classifier, {what}", replayed) for what, replayed in found[-1:]]
        return tuple(
            work.add(
                play,
                asked.rules,
                setting.informed_attack,
                replayed,
                design_seed=seed_of_design(setting, 0),
                seed=setting.seed.child("held-out"),
                first=0,
                last=min(self.replays, CONTROL_REPLAYS),
                label=f"control, {what}",
                resources=setting.resources.on_cpus,
            )
            for play, what, replayed in plays
        )

    def _ceiling(self, setting: Setting, work: Work, asked: Asked) -> tuple[Unit, ...]:
        """The game against a mechanism without privacy, where that has to be played."""
        if not self.answers_with_labels():
            return ()
        played = work.add(
            play_replays,
            asked.rules,
            setting.informed_attack,
            asked.canaries(asked.truth(seed_of_design(setting, 0))),
            design_seed=seed_of_design(setting, 0),
            seed=setting.seed.child("replays"),
            first=0,
            last=min(self.replays * self.trainings, CEILING_REPLAYS),
            label="what a mechanism without privacy would show",
            resources=setting.resources.on_cpus,
        )
        return (played,)

    def _reference(self, setting: Setting) -> Reference:
        """What the game's power is planned with."""
        canaries = self.canaries_of(setting.parts.target)
        asked = self.proxy_task(canaries, setting.parts.reference if self.needs_reference() else None)
        return Reference(self.response(asked), len(canaries), "canaries", self.replays * self.trainings)

    def _plays_releases(self, setting: Setting) -> bool:
        return self.fits.face_of(setting.mechanism) is LABEL_MECHANISMS
