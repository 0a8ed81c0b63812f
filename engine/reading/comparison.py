"""Label mechanisms side by side: what each tells of single labels, beside what a model learns from it.

Audits of one data set are a study; those of one mechanism, whichever advantage they read, are one setting of it. The
advantages are those of Busa-Fekete et al. (2024), section 4: the mean additive one, and the 98 % quantile of the
multiplicative one, which the infinite cases of exact counts need not reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.request.describe import describe, in_words
from dpaudit.estimators.finding import Series
from dpaudit.estimators.label_reconstruction.bags import MEASURES, AdvantageDistribution
from dpaudit.mechanisms.labels.proportions import Aggregation, NoisyAggregation
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse

LEVEL = 0.98
"""Of the quantile of the multiplicative advantage."""


@dataclass(frozen=True, eq=False)
class Compared:
    """One setting of a mechanism on one data set."""

    mechanism: str  # in words
    family: str  # the mechanism without its settings: one colour
    curve: str  # the settings that differ in one parameter alone: one line
    auc: float  # of models trained on its releases; NaN where that was not measured
    auc_error: float  # its standard error; NaN with one run
    advantage: dict[str, float]  # by kind: the mean additive one, the 98 % quantile of the multiplicative one
    largest: float  # the largest multiplicative advantage; NaN where that was not asked for
    claimed: float  # the epsilon it promises; inf where it promises none
    spread: dict[str, Series]  # by kind: the columns of how the advantages are spread
    beliefs: Series  # those of some priors and posteriors


@dataclass(frozen=True, eq=False)
class Study:
    """All settings on one data set, in the order of the spec."""

    data: str
    settings: tuple[Compared, ...]

    def dominated(self, kind: str) -> tuple[Compared, ...]:
        """Settings that another one beats: a model learns no less from it, and it tells no more of single labels."""
        measured = [one for one in self.settings if not math.isnan(one.auc) and kind in one.advantage]
        return tuple(one for one in measured if any(_beats(other, one, kind) for other in measured))

    def response_at(self, auc: float, kind: str) -> float:
        """The advantage of randomised response where models learn as much; NaN beyond its settings.

        Read off the straight lines between its settings, in the order of the AUC.
        """
        own = [one for one in self.settings if one.family == RESPONSE and kind in one.advantage and one.auc == one.auc]
        own = sorted((one for one in own if math.isfinite(one.advantage[kind])), key=lambda one: one.auc)
        if not own or not own[0].auc <= auc <= own[-1].auc:
            return math.nan
        return float(np.interp(auc, [one.auc for one in own], [one.advantage[kind] for one in own]))

    @property
    def lines(self) -> tuple[str, ...]:
        """The comparison at equal utility, for a reader."""
        others = [one for one in self.settings if one.family != RESPONSE and not math.isnan(one.auc)]
        if not others or not any(one.family == RESPONSE for one in self.settings):
            return ()
        lines = (f"  {self._line(one)}" for one in others)
        quantities = f"{LEVEL:.0%} quantile of the multiplicative advantage, mean additive advantage"
        return (f"at equal utility (AUC) on {self.data}: {quantities}", *lines, *self._summary(others))

    def _line(self, one: Compared) -> str:
        own = ", ".join(f"{kind} {one.advantage[kind]:.4g}" for kind in MEASURES if kind in one.advantage)
        told = [(kind, self.response_at(one.auc, kind)) for kind in MEASURES if kind in one.advantage]
        known = [f"{kind} {value:.4g}" for kind, value in told if not math.isnan(value)]
        against = f"randomised response {', '.join(known)}" if known else "no randomised response of this AUC here"
        return f"AUC {one.auc:.4f}, {one.mechanism}: {own}; {against}"

    def _summary(self, others: Sequence[Compared]) -> list[str]:
        lines = []
        for kind in MEASURES:
            pairs = [(one.advantage[kind], self.response_at(one.auc, kind)) for one in others if kind in one.advantage]
            pairs = [(own, response) for own, response in pairs if not math.isnan(response)]
            if pairs:
                less = sum(response < own for own, response in pairs)
                gap = float(np.median([own - response for own, response in pairs]))
                said = "dominates" if less == len(pairs) else f"tells less in {less} of {len(pairs)} settings"
                beside = " infinite" if math.isinf(gap) else f" {gap:+.4g}"
                lines.append(
                    f"  by the {kind} advantage randomised response {said}; median of the others' less its own:{beside}"
                )
        return lines


def studies(results: Sequence[AuditResult]) -> list[Study]:
    """The audits of label advantages in a run, one study a data set."""
    found: dict[str, dict[str, list[AuditResult]]] = {}
    for result in results:
        played = isinstance(result.finding, AdvantageDistribution) and result.audited is not None
        if played and "beliefs" in result.series:
            found.setdefault(result.data, {}).setdefault(result.mechanism, []).append(result)
    return [Study(data, tuple(map(_compared, settings.values()))) for data, settings in found.items()]


def _compared(results: Sequence[AuditResult]) -> Compared:
    first = results[0]
    spread = {series["kind"]: series for result in results for series in result.series.values() if "kind" in series}
    advantage = {kind: series["mean"] for kind, series in spread.items()}
    largest = math.nan
    if "multiplicative" in spread:
        tail = spread["multiplicative"]
        advantage["multiplicative"] = float(tail["advantage"][np.searchsorted(tail["share"], LEVEL)])
        largest = tail["largest"]
    return Compared(
        mechanism=_setting(first.audited),
        family=_family(first.audited),
        curve=_curve(first.audited),
        auc=first.metrics.get("test_auc", math.nan),
        auc_error=first.metrics.get("test_auc_error", math.nan),
        advantage=advantage,
        largest=largest,
        claimed=first.compared.claim.curve.epsilon(0.0),
        spread=spread,
        beliefs=first.series["beliefs"],
    )


def _beats(one: Compared, other: Compared, kind: str) -> bool:
    no_worse = one.auc >= other.auc and one.advantage[kind] <= other.advantage[kind]
    return no_worse and (one.auc > other.auc or one.advantage[kind] < other.advantage[kind])


def _family(mechanism: Any) -> str:
    """The name of a mechanism without its settings."""
    return str(describe(mechanism)["name"])


RESPONSE = _family(RandomizedResponse(1.0))


def _setting(mechanism: Any) -> str:
    """A mechanism with its settings, for a legend."""
    if isinstance(mechanism, RandomizedResponse | NoisyAggregation):
        return f"{_curve(mechanism)}, ε = {mechanism.epsilon:g}"
    if isinstance(mechanism, Aggregation):
        return f"{_family(mechanism)}, {_bags(mechanism)}"
    return in_words(mechanism)


def _curve(mechanism: Any) -> str:
    """Which settings make a line of the trade-off: those that differ in one parameter."""
    noisy = isinstance(mechanism, NoisyAggregation)
    return f"{_family(mechanism)}, {_bags(mechanism)}" if noisy else _family(mechanism)


def _bags(mechanism: Aggregation) -> str:
    return f"bags of {mechanism.size}" if mechanism.key is None else f"bags by {mechanism.key}"
