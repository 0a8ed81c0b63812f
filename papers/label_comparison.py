"""Comparison of label mechanisms: label inference advantage against the utility of models trained on the releases.

The audits of one data set form a study; the audits of one mechanism form one setting of it. Advantages are those of
Busa-Fekete et al. (2024), section 4: the mean additive advantage, and the 98 % quantile of the multiplicative
advantage. The quantile stays finite if exact counts make less than 2 % of the multiplicative advantages infinite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.request.build import call_text, describe
from dpaudit.estimators.finding import Series
from dpaudit.estimators.label_reconstruction.bags import MEASURES, AdvantageDistribution
from dpaudit.mechanisms.labels.proportions import Aggregation, NoisyAggregation
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse

QUANTILE = 0.98
"""Quantile of the multiplicative advantage that is compared."""


@dataclass(frozen=True, eq=False)
class MechanismSetting:
    """A mechanism with its settings, on one data set."""

    mechanism: str  # in words
    family: str  # name of the mechanism without settings; one colour in figures
    curve: str  # settings that differ in one parameter share this name; one line in figures
    auc: float  # of models trained on its releases; NaN if not measured
    auc_error: float  # standard error of `auc`; NaN for one run
    advantage: dict[str, float]  # by kind: mean for "additive", 98 % quantile for "multiplicative"
    largest: float  # largest multiplicative advantage; NaN if not measured
    claimed: float  # claimed epsilon at delta = 0; inf if nothing is claimed
    spread: dict[str, Series]  # columns of the distribution of advantages, by kind
    beliefs: Series  # columns of sampled priors and posteriors


@dataclass(frozen=True, eq=False)
class LabelStudy:
    """All mechanism settings on one data set, in the order of the spec."""

    data: str
    settings: tuple[MechanismSetting, ...]

    def dominated(self, kind: str) -> tuple[MechanismSetting, ...]:
        """Return the settings that another setting dominates in AUC and advantage."""
        measured = [setting for setting in self.settings if not math.isnan(setting.auc) and kind in setting.advantage]
        return tuple(setting for setting in measured if any(_dominates(other, setting, kind) for other in measured))

    def response_at(self, auc: float, kind: str) -> float:
        """Return the advantage of randomised response at this AUC; NaN outside the range of its settings.

        It is interpolated linearly between the settings of randomised response, in the order of their AUC.
        """
        responses = [
            setting
            for setting in self.settings
            if setting.family == RANDOMIZED_RESPONSE and kind in setting.advantage and setting.auc == setting.auc
        ]
        responses = sorted(
            (setting for setting in responses if math.isfinite(setting.advantage[kind])),
            key=lambda setting: setting.auc,
        )
        if not responses or not responses[0].auc <= auc <= responses[-1].auc:
            return math.nan
        return float(
            np.interp(auc, [setting.auc for setting in responses], [setting.advantage[kind] for setting in responses])
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the comparison at equal AUC."""
        others = [
            setting
            for setting in self.settings
            if setting.family != RANDOMIZED_RESPONSE and not math.isnan(setting.auc)
        ]
        if not others or not any(setting.family == RANDOMIZED_RESPONSE for setting in self.settings):
            return ()
        lines = (f"  {self._line(setting)}" for setting in others)
        quantities = f"{QUANTILE:.0%} quantile of the multiplicative advantage, mean additive advantage"
        return (f"at equal utility (AUC) on {self.data}: {quantities}", *lines, *self._summary(others))

    def _line(self, setting: MechanismSetting) -> str:
        advantages = ", ".join(
            f"{kind} {setting.advantage[kind]:.4g}" for kind in MEASURES if kind in setting.advantage
        )
        response_values = [
            (kind, self.response_at(setting.auc, kind)) for kind in MEASURES if kind in setting.advantage
        ]
        at_equal_auc = [f"{kind} {value:.4g}" for kind, value in response_values if not math.isnan(value)]
        against = (
            f"randomised response {', '.join(at_equal_auc)}" if at_equal_auc else "no randomised response with this AUC"
        )
        return f"AUC {setting.auc:.4f}, {setting.mechanism}: {advantages}; {against}"

    def _summary(self, others: Sequence[MechanismSetting]) -> list[str]:
        lines = []
        for kind in MEASURES:
            pairs = [
                (setting.advantage[kind], self.response_at(setting.auc, kind))
                for setting in others
                if kind in setting.advantage
            ]
            pairs = [(advantage, response) for advantage, response in pairs if not math.isnan(response)]
            if pairs:
                less = sum(response < advantage for advantage, response in pairs)
                gap = float(np.median([advantage - response for advantage, response in pairs]))
                relation = "dominates" if less == len(pairs) else f"has less in {less} of {len(pairs)} settings"
                difference = " infinite" if math.isinf(gap) else f" {gap:+.4g}"
                lines.append(
                    f"  {kind} advantage: randomised response {relation}; median difference of the others:{difference}"
                )
        return lines


def label_studies(results: Sequence[AuditResult]) -> list[LabelStudy]:
    """Return one study for each data set on which a run measured label inference advantages."""
    by_data: dict[str, dict[str, list[AuditResult]]] = {}
    for result in results:
        played = isinstance(result.finding, AdvantageDistribution) and result.audited is not None
        if played and "beliefs" in result.series:
            by_data.setdefault(result.data, {}).setdefault(result.mechanism, []).append(result)
    return [LabelStudy(data, tuple(map(_mechanism_setting, settings.values()))) for data, settings in by_data.items()]


def _mechanism_setting(results: Sequence[AuditResult]) -> MechanismSetting:
    first = results[0]
    spread = {series["kind"]: series for result in results for series in result.series.values() if "kind" in series}
    advantage = {kind: series["mean"] for kind, series in spread.items()}
    largest = math.nan
    if "multiplicative" in spread:
        tail = spread["multiplicative"]
        advantage["multiplicative"] = float(tail["advantage"][np.searchsorted(tail["share"], QUANTILE)])
        largest = tail["largest"]
    return MechanismSetting(
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


def _dominates(setting: MechanismSetting, other: MechanismSetting, kind: str) -> bool:
    no_worse = setting.auc >= other.auc and setting.advantage[kind] <= other.advantage[kind]
    return no_worse and (setting.auc > other.auc or setting.advantage[kind] < other.advantage[kind])


def _family(mechanism: Any) -> str:
    """Return the name of a mechanism without its settings."""
    return str(describe(mechanism)["name"])


RANDOMIZED_RESPONSE = _family(RandomizedResponse(1.0))


def _setting(mechanism: Any) -> str:
    """Return a mechanism with its settings, for a legend."""
    if isinstance(mechanism, RandomizedResponse | NoisyAggregation):
        return f"{_curve(mechanism)}, ε = {mechanism.epsilon:g}"
    if isinstance(mechanism, Aggregation):
        return f"{_family(mechanism)}, {_bags(mechanism)}"
    return call_text(mechanism)


def _curve(mechanism: Any) -> str:
    """Return the name shared by the settings that differ in one parameter and form a line of the trade-off."""
    noisy = isinstance(mechanism, NoisyAggregation)
    return f"{_family(mechanism)}, {_bags(mechanism)}" if noisy else _family(mechanism)


def _bags(mechanism: Aggregation) -> str:
    return f"bags of {mechanism.size}" if mechanism.key is None else f"bags by {mechanism.key}"
