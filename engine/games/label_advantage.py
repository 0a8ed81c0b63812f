"""Label reconstruction: what is believed of each label before a release, and after it (Busa-Fekete et al., 2024).

The challenger flips nothing. The prior of each example comes from a model that has not seen its label: one trained on
the reference part, or, without one, on the other folds of the target part. The mechanism divides the examples into bags
and releases; the attacker says what each release means for each label. Beliefs after it follow by Bayes, and the true
labels stand beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit, logit

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Unit
from dpaudit.claims import Relation
from dpaudit.engine.findings.posterior_table import PosteriorTable
from dpaudit.engine.games.fits import BAG_MECHANISMS, Fits
from dpaudit.engine.games.protocol import GamePlan, Setting, require_units
from dpaudit.engine.games.utility import MeasureUtility, Utility
from dpaudit.engine.proxies.known_law import KnownLaw
from dpaudit.engine.spec.partition import part_of, required_part
from dpaudit.engine.views.bag_view import BagView
from dpaudit.errors import InputError, SpecError, require
from dpaudit.estimators.label_reconstruction.advantage import (
    llp_additive_advantage,
    llp_geometric_additive_advantage,
    llp_laplace_additive_advantage,
    rr_additive_advantage,
)
from dpaudit.estimators.posteriors import Posteriors
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.bags import LEFT_OUT, Bags
from dpaudit.mechanisms.labels.proportions import GeometricProportions, LabelProportions, LaplaceProportions
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.protocols import BagMechanism, Compute
from dpaudit.registry import register

Floats = NDArray[np.float64]


@register("game", "label-advantage", source="Busa-Fekete et al. (2024), Definitions 3.1 and 3.6, section 4")
@dataclass(frozen=True)
class LabelAdvantage:
    """Shows the attacker a release about bags of two-class labels: how much better does it know each of them?

    Attributes:
        releases: Independent releases of the same labels, >= 1, each with bags of its own.
        folds: Without a reference part, the prior of each fold of the target part is that of a model trained on the
            others; >= 2.
        utility: What a model learns from the release, measured on the test part; None measures nothing.
    """

    releases: int = 10
    folds: int = 5
    utility: Utility | None = None

    fits: ClassVar[Fits] = Fits(
        relation=Relation.LABEL,
        assumes="The prior must be the law of the labels given the features, and labels independent of each other "
        "given these; an attacker who knows more, or sees a second release, gains more.",
        views={BAG_MECHANISMS: BagView},
        attack="bayes-optimal",
        estimator="label-advantage",
        evidence=Posteriors,
        uses_proxy=True,
    )

    def __post_init__(self) -> None:
        require(self.releases >= 1, "releases must be >= 1", releases=self.releases)
        require(self.folds >= 2, "folds must be >= 2", folds=self.folds)

    def plan(self, setting: Setting) -> GamePlan:
        """Priors, releases, and what a model learns from them.

        Raises: SpecError for more than two classes, bags that cannot be made of the data, too few examples for the
            folds, or no test part to measure on.
        """
        target = setting.parts.target
        if target.classes != 2:
            raise SpecError(
                f"label-advantage plays labels of two classes, got {target.classes} of {target.name}; merge some, or "
                "use the functions of dpaudit.estimators.label_reconstruction.classes"
            )
        try:
            setting.mechanism.bags(target, rng=setting.seed.child("planning").rng())
        except InputError as err:  # before anything is trained for a division that cannot be made
            raise SpecError(f"{target.name}: {err}") from err
        priors = self._prior_units(setting)
        releases = self._release_units(setting, tuple(unit.key for unit in priors))
        measured = self._utility_units(setting)
        return GamePlan(
            units=(*priors, *releases, *measured),
            scores=tuple(unit.key for unit in releases),
            trainings=tuple(unit.key for unit in measured),
            observational=True,
            reading=setting.reading,
            replays=self.releases,
        )

    def _prior_units(self, setting: Setting) -> list[Unit]:
        """One for each model that priors come from."""
        alone = isinstance(setting.proxy, KnownLaw) or len(setting.parts.reference) > 0
        folds = 1 if alone else self.folds
        if len(setting.parts.target) < 2 * folds:
            raise SpecError(
                f"{folds} folds need at least {2 * folds} examples, got {len(setting.parts.target)}; use more data"
            )
        seed = setting.seed.child("prior")
        return [
            Unit(
                FindPriors(setting.proxy, setting.data, seed, fold, folds),
                f"priors, fold {fold + 1} of {folds}" if folds > 1 else "priors",
                setting.parts.names("target", "reference"),
                setting.after,
                setting.resources,
            )
            for fold in range(folds)
        ]

    def _release_units(self, setting: Setting, priors: tuple[str, ...]) -> list[Unit]:
        each = max(1, min(setting.rows_per_unit // len(setting.parts.target), -(-self.releases // 2)))
        require_units(-(-self.releases // each))
        play = PlayReleases(setting.mechanism, setting.attack, setting.seed.child("releases"), 0, 1, priors)
        return [
            Unit(
                replace(play, first=first, last=min(first + each, self.releases)),
                f"releases {first + 1}-{min(first + each, self.releases)}",
                setting.parts.names("target"),
                (*priors, *setting.after),
                setting.resources.on_cpus,
            )
            for first in range(0, self.releases, each)
        ]

    def _utility_units(self, setting: Setting) -> list[Unit]:
        if self.utility is None:
            return []
        if len(setting.parts.test) < 4:
            raise SpecError("utility is measured on the test part; give `split.test` a share above 0")
        task = MeasureUtility(setting.mechanism, self.utility, setting.seed.child("utility"))
        names = setting.parts.names("target", "test")
        return [Unit(task, f"utility, {self.utility.trainings} trainings", names, setting.after, setting.resources)]


@dataclass(frozen=True)
class FindPriors:
    """P[label = 1] of one fold of the target part, from a model that has not seen its labels."""

    proxy: Any
    data: Any
    seed: Seed
    fold: int
    folds: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row an example: its place in the target part and its prior."""
        target, reference = required_part(inputs, "target"), part_of(inputs, "reference")
        fold = self.seed.child("folds").rng().permutation(len(target)) % self.folds
        rows = np.flatnonzero(fold == self.fold)
        known = target.take(fold != self.fold) if self.folds > 1 else reference
        predict = self.proxy.predictor(
            reference=None if known is None else known.writable(),
            data=self.data,
            seed=self.seed.child(self.fold).sequence(),
            compute=compute,
        )
        return pa.table({"row": rows, "prior": np.asarray(predict(target.take(rows)), np.float64)[:, 1]})


@dataclass(frozen=True)
class PlayReleases:
    """Releases `first` to `last` - 1: what is believed of each label, and what was true.

    Attributes:
        mechanism: What releases.
        attack: Says what a release means for each label.
        seed: Each release's seed is a child of this one.
        first: First release.
        last: One past the last one.
        priors: Keys of the units that found the priors.
    """

    mechanism: BagMechanism
    attack: Any
    seed: Seed
    first: int
    last: int
    priors: tuple[str, ...]

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A table of posteriors."""
        return PosteriorTable().encode(self._played(inputs))

    def batches(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        """One release at a time."""
        for beliefs in self._played(inputs):
            yield from PosteriorTable().encode([beliefs]).to_batches()

    def _played(self, inputs: Inputs) -> Iterator[Posteriors]:
        target = required_part(inputs, "target")
        prior = np.empty(len(target))
        for key in self.priors:
            found = inputs.tables[key]
            prior[found["row"].to_numpy()] = found["prior"].to_numpy()
        for number in range(self.first, self.last):
            yield self._release(number, target, prior)

    def _release(self, number: int, target: Examples, prior: Floats) -> Posteriors:
        seed = self.seed.child(number)
        bags = self.mechanism.bags(target, rng=seed.child("bags").rng())
        released = self.mechanism.release_counts(bags.counts(target.labels, 2), rng=seed.child("noise").rng())[:, 1]
        shift, expected = np.zeros_like(prior), np.zeros_like(prior)
        for members in members_by_size(bags):
            those, size = bags.of[members[:, 0]], members.shape[1]
            law = self.mechanism.log_likelihood(released[those], size)
            score = np.asarray(self.attack.score(BagView(prior[members], released[those], law)), np.float64)
            require(score.shape == members.shape, "the attack must give one score for each example", shape=score.shape)
            shift[members] = score
            on_average = expected_advantage(self.mechanism, prior[members])
            expected[members] = np.nan if on_average is None else on_average
        certain = (prior == 0) | (prior == 1)
        with np.errstate(divide="ignore"):
            posterior = np.where(certain, prior, expit(logit(prior) + np.where(certain, 0.0, shift)))
        known = None if np.isnan(expected).any() else expected
        return Posteriors(prior, posterior, bags.of, number, shift, known, target.labels)


def members_by_size(bags: Bags) -> Iterator[NDArray[np.int64]]:
    """The examples of all bags of one size, shape (bags, size), size by size."""
    order = np.argsort(bags.of, kind="stable")[np.count_nonzero(bags.of == LEFT_OUT) :]
    first = np.cumsum(bags.sizes) - bags.sizes
    for size in np.unique(bags.sizes):
        yield order[first[bags.sizes == size][:, None] + np.arange(size)]


@singledispatch
def expected_advantage(mechanism: Any, prior: Floats) -> Floats | None:
    """Additive advantage of each example on average over releases, priors and result of shape (bags, k).

    Returns: None for a mechanism whose mean is not known in closed form.
    """
    return None


@expected_advantage.register
def _(mechanism: RandomizedResponse, prior: Floats) -> Floats | None:
    if math.isinf(mechanism.epsilon):
        return llp_additive_advantage(prior)
    return np.asarray(rr_additive_advantage(prior, epsilon=mechanism.epsilon))


@expected_advantage.register
def _(mechanism: LabelProportions, prior: Floats) -> Floats | None:
    return llp_additive_advantage(prior)


@expected_advantage.register
def _(mechanism: LaplaceProportions, prior: Floats) -> Floats | None:
    return llp_laplace_additive_advantage(prior, epsilon=mechanism.epsilon)


@expected_advantage.register
def _(mechanism: GeometricProportions, prior: Floats) -> Floats | None:
    return llp_geometric_additive_advantage(prior, epsilon=mechanism.epsilon)
