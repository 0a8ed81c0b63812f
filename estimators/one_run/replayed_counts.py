"""Counts of several replays of one game on one trained model: one bound that holds whatever their dependence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Ints
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.counts import GUESSES, CountEstimator, Table, count_columns
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run.guesses import one_run_epsilon, one_run_p_value
from dpaudit.estimators.replays import (
    mean_and_deviation,
    mean_e_value,
    median_rule,
    per_replay_confidence,
    twice_mean_p,
)
from dpaudit.registry import register

Rule = Literal["median", "twice-mean-p", "mean-e-value"]


@register("estimator", "one-run-replays", source="Rueger (1978); Vovk and Wang (2020, 2021)")
@dataclass(frozen=True)
class OneRunReplays(CountEstimator):
    """Counts of one training run, one replay of the game a row, combined into one bound under any dependence.

    Attributes:
        delta: The delta the bound is stated at, in [0, 1); 0 for the rule mean-e-value.
        confidence: Of the combined bound, in (0, 1).
        rule: "median", "twice-mean-p" or "mean-e-value".
        alternative: For mean-e-value: accuracies in (1/2, 1) expected before the replays were seen, mixed equally.
    """

    columns: ClassVar[tuple[str, ...]] = GUESSES

    delta: float = 0.0
    confidence: float = 0.95
    rule: Rule = "median"
    alternative: tuple[float, ...] = (0.6, 0.75, 0.9, 0.99)

    def __post_init__(self) -> None:
        require(0 <= self.delta < 1, "delta must be in [0, 1)", delta=self.delta)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)
        require(self.rule in get_args(Rule), f"rule must be one of {', '.join(get_args(Rule))}", rule=self.rule)
        require(
            self.rule != "mean-e-value" or self.delta == 0,
            "the mean of e-values holds at delta = 0 only",
            do="use the median",
            delta=self.delta,
        )
        inside = len(self.alternative) > 0 and all(0.5 < q < 1 for q in self.alternative)
        require(inside, "alternative must be accuracies in (1/2, 1)", alternative=self.alternative)

    def read(self, table: Table) -> Sequence[Bound]:
        """One bound for the whole table."""
        guesses, correct, canaries = count_columns(table, GUESSES).values()
        alone = one_run_epsilon(guesses, correct, canaries=canaries, delta=self.delta, confidence=self.confidence)
        mean, deviation = mean_and_deviation(alone)
        return [
            Bound(
                lower=self._combined(guesses, correct, canaries),
                delta=self.delta,
                confidence=self.confidence,
                method=f"one-run-replays ({self.rule})",
                validity=Validity.FINITE_SAMPLE,
                counts=(("replays", guesses.size),),
                notes=(
                    f"single replays at {self.confidence:g}: mean {mean:.3f} ± {deviation:.3f} (standard deviation of "
                    f"{guesses.size}); a mean of dependent bounds is not a bound at that confidence",
                )
                if guesses.size > 1
                else (),
            )
        ]

    def _combined(self, guesses: Ints, correct: Ints, canaries: Ints) -> float:
        if self.rule == "mean-e-value":
            return mean_e_value(guesses, correct, confidence=self.confidence, alternative=self.alternative)
        if self.rule == "twice-mean-p":
            return twice_mean_p(
                lambda epsilon: one_run_p_value(guesses, correct, epsilon=epsilon, canaries=canaries, delta=self.delta),
                confidence=self.confidence,
            )
        each = one_run_epsilon(
            guesses,
            correct,
            canaries=canaries,
            delta=self.delta,
            confidence=per_replay_confidence(self.confidence),
        )
        return float(median_rule(np.asarray(each)))
