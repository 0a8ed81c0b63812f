"""The plan of two-world membership games.

The challenge points are chosen, and shadow models trained, before any audited model and from seeds of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpaudit.actors.unit import Unit
from dpaudit.engine.canaries.protocol import Canary, GradientCanary
from dpaudit.engine.games.fits import Reading
from dpaudit.engine.games.protocol import GamePlan, Setting
from dpaudit.engine.games.shadows import TrainShadows
from dpaudit.engine.games.stacks import require_observable
from dpaudit.engine.games.trials import grouped_for_reading
from dpaudit.engine.games.two_world_rules import TwoWorldRules
from dpaudit.engine.games.two_world_units import ChooseChallenges, ScoreChallenges, TrainTrials
from dpaudit.errors import SpecError


@dataclass(frozen=True)
class TwoWorldGame(TwoWorldRules):
    """A two-world membership game: the rules, and the plan that plays them."""

    def plan(self, setting: Setting) -> GamePlan:
        """Shadow models and choice of challenges in the order they need each other, trials, scores.

        Raises: SpecError when mechanism, attack and canary do not go together.
        """
        self.setup(len(setting.parts.target), None, self.population, setting.seed)
        needs: frozenset[str] = setting.attack.needs
        canary = self.challenge_canary
        if isinstance(canary, GradientCanary) and needs != {"gradients"}:
            raise SpecError(
                "a gradient canary is no point whose confidence could be asked for; use attack: gradient-likelihood "
                "(it knows sampling and noise) or gradient-dot"
            )
        if isinstance(canary, GradientCanary) or "gradients" in needs:
            require_observable(setting.mechanism)
        shadows, choice = self._preparation(setting, attack_needs_shadows="shadows" in needs)
        trials = self._trial_units(setting, watched="gradients" in needs, choice=choice)
        shadow_keys = tuple(unit.key for unit in shadows) if "shadows" in needs else ()
        scores = [
            self._score_unit(setting, trainings, shadow_keys) for trainings in grouped_for_reading(trials, setting)
        ]
        crafts = choice is not None and isinstance(canary, Canary) and canary.crafted
        chosen = () if choice is None else (choice,)
        before = (*chosen, *shadows) if crafts else (*shadows, *chosen)
        return GamePlan(
            (*before, *trials, *scores),
            tuple(unit.key for unit in scores),
            tuple(unit.key for unit in trials),
            observational=False,
            reading=setting.reading,
            reference=self.reference(),
        )

    def _preparation(self, setting: Setting, *, attack_needs_shadows: bool) -> tuple[list[Unit], Unit | None]:
        """Units of the shadow models, and the unit that chooses the challenges."""
        canary = self.challenge_canary
        if not isinstance(canary, Canary):
            return (self._shadow_units(setting, None) if attack_needs_shadows else []), None
        if canary.crafted:
            choice = self._choice(setting, canary, [])
            return (self._shadow_units(setting, choice) if attack_needs_shadows else []), choice
        shadows = self._shadow_units(setting, None) if attack_needs_shadows or canary.needs_shadows else []
        return shadows, self._choice(setting, canary, shadows if canary.needs_shadows else [])

    def _choice(self, setting: Setting, canary: Canary, shadows: list[Unit]) -> Unit:
        keys = tuple(unit.key for unit in shadows)
        task = ChooseChallenges(canary, setting.seed.child("canary"), keys)
        return Unit(task, "challenge points", setting.parts.names("target"), keys, setting.resources.on_cpus)

    def _shadow_units(self, setting: Setting, crafted: Unit | None) -> list[Unit]:
        step = 2 * -(-self.stack // 2)  # pairs stay together
        task = TrainShadows(
            setting.mechanism if self.shadow_mechanism is None else self.shadow_mechanism,
            setting.seed.child("shadows"),
            first=0,
            last=2,
            queries=self.queries,
            challenges=None if crafted is None else crafted.key,
        )
        return [
            Unit(
                replace(task, first=first, last=min(first + step, self.shadows)),
                f"shadow models {first + 1}-{min(first + step, self.shadows)}",
                setting.parts.names("target"),
                () if crafted is None else (crafted.key,),
                setting.resources,
            )
            for first in range(0, self.shadows, step)
        ]

    def _trial_units(self, setting: Setting, *, watched: bool, choice: Unit | None) -> list[Unit]:
        task = TrainTrials(
            # Only what decides a trial: more trials, other shadow models, reuse what is finished.
            replace(self, trials=2, stack=1, shadows=2, shadow_mechanism=None, population=0),
            setting.mechanism,
            setting.seed.child("trials"),
            population=self.population,
            watched=watched,
            challenges=None if choice is None else choice.key,
        )
        return [
            Unit(
                replace(task, first=first, last=last),
                f"training trials {first + 1}-{last}",
                setting.parts.names("target", "test", "validation"),
                () if choice is None else (choice.key,),
                setting.resources,
            )
            for first, last in self.stacks()
        ]

    def _score_unit(self, setting: Setting, trials: tuple[Unit, ...], shadows: tuple[str, ...]) -> Unit:
        keys = tuple(unit.key for unit in trials)
        alone = setting.reading is Reading.IN_ORDER
        what = trials[0].label.removeprefix("training ") if alone else f"{self.trials} trials"
        return Unit(
            ScoreChallenges(setting.informed_attack, keys, shadows),
            f"scores of {what}",
            (),
            (*keys, *shadows),
            setting.resources.on_cpus,
        )
