"""The plan of two-world membership games.

The challenge points are chosen, and shadow models trained, before any audited model and from seeds of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work
from dpaudit.engine.games.fits import Reading
from dpaudit.engine.games.protocol import Played, Setting
from dpaudit.engine.games.stacks import require_observable
from dpaudit.engine.games.trials import grouped_for_reading
from dpaudit.engine.games.two_world.canaries.protocol import Canary, GradientCanary
from dpaudit.engine.games.two_world.rules import TwoWorldRules
from dpaudit.engine.games.two_world.shadow_models import train_shadows
from dpaudit.engine.games.two_world.work import choose_challenges, score_challenges, train_trials
from dpaudit.errors import SpecError


@dataclass(frozen=True)
class TwoWorldGame(TwoWorldRules):
    """A two-world membership game: the rules, and the plan that plays them."""

    def play(self, setting: Setting, work: Work) -> Played:
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
        shadows, challenges = self._prepared(setting, work, attack_needs_shadows="shadows" in needs)
        trials = work.split(
            train_trials,
            self.trials,
            self.stack,
            # Only what decides a trial: more trials, other shadow models, reuse what is finished.
            replace(self, trials=2, stack=1, shadows=2, shadow_mechanism=None, population=0),
            setting.mechanism,
            setting.required("target"),
            setting.given("test"),
            setting.given("validation"),
            challenges,
            population=self.population,
            watched="gradients" in needs,
            seed=setting.seed.child("trials"),
            label="training trials",
            resources=setting.resources,
            after=setting.after,
        )
        known = shadows if "shadows" in needs else ()
        scores = tuple(self._scored(setting, work, stacks, known) for stacks in grouped_for_reading(trials, setting))
        return Played(scores, trainings=trials, shadows=shadows, reference=self.reference())

    def _prepared(
        self, setting: Setting, work: Work, *, attack_needs_shadows: bool
    ) -> tuple[tuple[Unit, ...], Unit | None]:
        """Shadow models, and the challenge points that are chosen."""
        canary = self.challenge_canary
        if not isinstance(canary, Canary):
            return (self._shadows(setting, work, None) if attack_needs_shadows else ()), None
        if canary.crafted:
            made = self._chosen(setting, work, canary, ())
            return (self._shadows(setting, work, made) if attack_needs_shadows else ()), made
        shadows = self._shadows(setting, work, None) if attack_needs_shadows or canary.needs_shadows else ()
        return shadows, self._chosen(setting, work, canary, shadows if canary.needs_shadows else ())

    def _chosen(self, setting: Setting, work: Work, canary: Canary, shadows: tuple[Unit, ...]) -> Unit:
        return work.add(
            choose_challenges,
            canary,
            shadows,
            setting.required("target"),
            seed=setting.seed.child("canary"),
            label="challenge points",
            resources=setting.resources.on_cpus,
        )

    def _shadows(self, setting: Setting, work: Work, crafted: Unit | None) -> tuple[Unit, ...]:
        return work.split(
            train_shadows,
            self.shadows,
            2 * -(-self.stack // 2),  # pairs stay together
            setting.mechanism if self.shadow_mechanism is None else self.shadow_mechanism,
            setting.required("target"),
            crafted,
            queries=self.queries,
            seed=setting.seed.child("shadows"),
            label="shadow models",
            resources=setting.resources,
            after=setting.after,
        )

    def _scored(self, setting: Setting, work: Work, trials: tuple[Unit, ...], shadows: tuple[Unit, ...]) -> Unit:
        alone = setting.reading is Reading.IN_ORDER
        what = trials[0].label.removeprefix("training ") if alone else f"{self.trials} trials"
        return work.add(
            score_challenges,
            setting.informed_attack,
            trials,
            shadows,
            label=f"scores of {what}",
            resources=setting.resources.on_cpus,
        )
