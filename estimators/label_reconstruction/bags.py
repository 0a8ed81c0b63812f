"""Tables of examples in bags: how much better an attacker guesses labels after a label-private release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.counts import BAGS, Column, CountEstimator, Floats, Ints, Table, TextTable, number_columns
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.label_reconstruction.advantage import (
    advantage_cdf,
    advantage_quantile,
    label_privacy_ceiling,
    llp_additive_advantage,
    llp_geometric_additive_advantage,
    llp_geometric_posterior,
    llp_laplace_additive_advantage,
    llp_laplace_posterior,
    llp_posterior,
    multiplicative_advantage,
    rr_additive_advantage,
    rr_posterior,
)
from dpaudit.estimators.label_reconstruction.advantage_distribution import AdvantageDistribution, Kind
from dpaudit.estimators.posteriors import Posteriors
from dpaudit.estimators.series import quantiles_of
from dpaudit.registry import register

Mechanism = Literal["rr", "llp", "llp-laplace", "llp-geometric"]
RELEASED = {"rr": "released", "llp": "positives", "llp-laplace": "count", "llp-geometric": "count"}
"""The column that holds what each mechanism released: one label a row, or one number a bag, repeated on its rows."""


@dataclass(frozen=True, eq=False)
class AdvantageTally:
    """The advantages at one release.

    Attributes:
        release: Number of the release.
        bags: How many bags it is made of.
        advantage: Of each example, shape (n,); its sign is of no matter, it may be inf.
    """

    release: int
    bags: int
    advantage: Floats


@register("estimator", "label-advantage", source="Busa-Fekete et al. (2024), Definitions 3.1 and 3.6, section 4")
@dataclass(frozen=True)
class LabelAdvantage(Estimator[Posteriors, AdvantageTally], CountEstimator):
    """Prior of every example in its bag: what rr or llp releases add to guessing labels, exact given the priors.

    Additive advantages need the priors alone. Multiplicative ones are of one release, and are printed where the table
    has it: `released` labels for rr, the bag's `positives` for llp, its noisy `count` for the others. Of posteriors one
    kind is read, of tables both.

    Attributes:
        mechanism: "rr", "llp" (plain counts), "llp-laplace" or "llp-geometric".
        epsilon: Of the mechanism, > 0; not for plain counts, which promise none.
        quantiles: Levels in [0, 1] at which the advantages' absolute values are shown.
        within: Thresholds >= 0: the share of examples whose advantage stays within each of them is shown.
        kind: Which advantages are read off posteriors: "multiplicative" (of the given posteriors, whatever the
            mechanism), or "additive" (on average over all releases of the stated mechanism).
    """

    evidence: ClassVar[type[Any]] = Posteriors
    tally_type: ClassVar[type[Any]] = AdvantageTally

    columns: ClassVar[tuple[str, ...]] = BAGS
    optional_columns: ClassVar[tuple[str, ...]] = ("released", "positives", "count")

    mechanism: Mechanism = "llp"
    epsilon: float | None = None
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.98, 1.0)
    within: tuple[float, ...] = ()
    kind: Kind = "multiplicative"

    def __post_init__(self) -> None:
        require(self.kind in get_args(Kind), f"kind must be one of {', '.join(get_args(Kind))}", kind=self.kind)
        known = get_args(Mechanism)
        require(self.mechanism in known, f"mechanism must be one of {', '.join(known)}", mechanism=self.mechanism)
        require(
            (self.epsilon is None) == (self.mechanism == "llp"),
            "epsilon must be given for rr, llp-laplace and llp-geometric, and for them only",
            mechanism=self.mechanism,
            epsilon=self.epsilon,
        )
        require(self.epsilon is None or self.epsilon > 0, "epsilon must be > 0", epsilon=self.epsilon)
        levels = self.quantiles
        require(all(0 <= level <= 1 for level in levels), "quantiles must be in [0, 1]", quantiles=levels)
        require(all(at >= 0 for at in self.within), "within must be thresholds >= 0", within=self.within)

    def tally(self, evidence: Posteriors) -> AdvantageTally:
        """The advantage of each example at one release."""
        if self.kind == "additive":
            advantage = self._additive(evidence.prior, _bags(evidence.bag))
        else:
            advantage = np.asarray(multiplicative_advantage(evidence.prior, evidence.posterior))
        return AdvantageTally(evidence.release, np.unique(evidence.bag).size, advantage)

    def find(self, tallies: Sequence[AdvantageTally], *, lost: int = 0) -> AdvantageDistribution:
        """The distribution over all examples of all releases; those of a lost release count as 0."""
        require(len(tallies) > 0, "a distribution needs the tally of at least one release", tallies=len(tallies))
        found = np.abs(np.concatenate([tally.advantage for tally in tallies]))
        advantages = np.concatenate([found, np.zeros(lost * found.size // len(tallies))])
        counts = {
            "examples": found.size,
            "bags": sum(tally.bags for tally in tallies),
            "releases": len(tallies) + lost,
        }
        if lost:
            counts["lost releases"] = lost
        values = np.atleast_1d(advantage_quantile(advantages, self.quantiles)).tolist()
        shares = np.atleast_1d(advantage_cdf(advantages, self.within)).tolist() if self.within else []
        named = f" of {self.mechanism}" if self.kind == "additive" else ""
        unit = ", nats" if self.kind == "multiplicative" else ""
        return AdvantageDistribution(
            kind=self.kind,
            mean=float(advantages.mean()),
            largest=float(advantages.max()),
            quantiles=tuple(zip(self.quantiles, values, strict=True)),
            within=tuple(zip(self.within, shares, strict=True)),
            method=f"label-advantage ({self.kind}{named})",
            counts=tuple(counts.items()),
            notes=("exact given the priors: another prior gives other advantages",),
            series=(quantiles_of(advantages, f"{self.kind} advantage{unit}"),),
        )

    def read(self, table: Table) -> Sequence[TextTable]:
        """The additive advantages, then the multiplicative ones of the release in the table."""
        released = RELEASED[self.mechanism]
        shown = released in table
        rows = number_columns(table, (*BAGS, released) if shown else BAGS)
        prior, bags = rows["prior"], _bags(rows["bag"])
        additive = self._additive(prior, bags)
        named = self.mechanism + (f", epsilon {self.epsilon:g}" if self.epsilon else "")
        scope = f"{prior.size} examples in {sum(len(group) for group in bags)} bags; exact given the priors"
        found = [self._finding(f"additive advantage of {named} ({scope})", additive, self._ceiling())]
        if shown:
            posterior = self._posterior(prior, rows[released], bags)
            gained = np.asarray(multiplicative_advantage(prior, posterior))
            title = f"multiplicative advantage of {named} at this release, in nats ({scope})"
            found.append(self._finding(title, np.abs(gained), ()))
        return found

    def _additive(self, prior: Floats, bags: list[Ints]) -> Floats:
        if self.mechanism == "rr":
            return np.asarray(rr_additive_advantage(prior, epsilon=self._epsilon()))
        advantages: dict[str, Callable[[Floats], Floats]] = {
            "llp": llp_additive_advantage,
            "llp-laplace": lambda eta: llp_laplace_additive_advantage(eta, epsilon=self._epsilon()),
            "llp-geometric": lambda eta: llp_geometric_additive_advantage(eta, epsilon=self._epsilon()),
        }
        found = np.empty(prior.size)
        for group in bags:
            found[group] = advantages[self.mechanism](prior[group])
        return found

    def _posterior(self, prior: Floats, released: Floats, bags: list[Ints]) -> Floats:
        if self.mechanism == "rr":
            return np.asarray(rr_posterior(prior, released, epsilon=self._epsilon()))
        posteriors: dict[str, Callable[[Floats, Floats], Floats]] = {
            "llp": llp_posterior,
            "llp-laplace": lambda eta, count: llp_laplace_posterior(eta, count, epsilon=self._epsilon()),
            "llp-geometric": lambda eta, count: llp_geometric_posterior(eta, count, epsilon=self._epsilon()),
        }
        found = np.empty(prior.size)
        for group in bags:
            one = released[group]
            require(
                bool((one == one[:, :1]).all()),
                f"column {RELEASED[self.mechanism]} must repeat one number on all rows of a bag",
                given=one[(one != one[:, :1]).any(axis=1)][:1].tolist(),
            )
            found[group] = posteriors[self.mechanism](prior[group], one[:, 0])
        return found

    def _finding(self, title: str, advantages: Floats, notes: tuple[str, ...]) -> TextTable:
        names = ["mean", *(f"{level:g} quantile" for level in self.quantiles)]
        values = [float(advantages.mean()), *np.atleast_1d(advantage_quantile(advantages, self.quantiles)).tolist()]
        names += [f"share within {at:g}" for at in self.within]
        if self.within:
            values += np.atleast_1d(advantage_cdf(advantages, self.within)).tolist()
        return TextTable(title, (Column("of |advantage|", tuple(names)), Column("value", tuple(values))), notes)

    def _ceiling(self) -> tuple[str, ...]:
        if self.epsilon is None:
            return ("plain counts promise no label privacy",)
        ceiling = label_privacy_ceiling(self.epsilon)
        return (f"no release with label privacy {self.epsilon:g} has a mean above {ceiling:.6g}",)

    def _epsilon(self) -> float:
        assert self.epsilon is not None  # required in __post_init__ by all that call this
        return self.epsilon


def _bags(names: Floats | Ints) -> list[Ints]:
    """Rows of all bags of one size, shape (bags, size), for each size."""
    _, bag, size = np.unique(names, return_inverse=True, return_counts=True)
    order, first = np.argsort(bag, kind="stable"), np.cumsum(size) - size
    return [
        np.stack([order[first[one] : first[one] + k] for one in np.flatnonzero(size == k)]) for k in np.unique(size)
    ]
