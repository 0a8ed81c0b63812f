"""`SyntheticAudit`: the verdict on a synthetic table, with the attacks, the control and everything a page needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.answer.answer_words import claimed_and_observed
from dpaudit.engine.answer.record import Record, Test, Verb
from dpaudit.engine.answer.verdict import Answered
from dpaudit.errors import printable_lines
from dpaudit.estimators.bound import Bound, format_lower
from dpaudit.estimators.scores import Scores
from dpaudit.synthetic_tables.games.split_control import SplitControl
from dpaudit.synthetic_tables.games.usual_measures import UsualMeasure
from dpaudit.synthetic_tables.games.utility import UtilityMeasure

if TYPE_CHECKING:
    import pandas as pd

ALONE = "alone, not part of the verdict"
USEFUL = "utility of the synthetic rows (in brackets: of real rows in their place):"
RISKS = "risks by their plain names, all at 95 % together, not part of the verdict:"
USUAL = "usual measures, which bound no epsilon and are not part of the verdict:"


@dataclass(frozen=True, eq=False)
class AttackAlone:
    """Result of one attack alone. It is no part of the verdict, which rests on all attacks together.

    Attributes:
        name: Registered name of the attack.
        summary: First line of its docstring.
        accuracy: Share of the pairs in which its score is larger for the canary trained on; a tie counts as half.
        bound: Bound from its own score alone, at the confidence of the printed bounds, with all of the error.
        seconds: Wall time that it took.
        score: Its score of each real row, shape (rows,); larger = more likely trained on.
    """

    name: str
    summary: str
    accuracy: float
    bound: Bound
    seconds: float
    score: NDArray[np.float64] = field(repr=False)

    def __str__(self) -> str:
        return (
            f"{self.name:<20}right in {100 * self.accuracy:.3g} % of all pairs, epsilon >= "
            f"{format_lower(self.bound.lower)}  ({ALONE})"
        )


@dataclass(frozen=True, eq=False)
class Risk:
    """Shares of training and of holdout records for which an attempt succeeds, and the bound from guesses by its score.

    Attributes:
        name: Plain name: "singled out", "linked", "inferred".
        meaning: What succeeds, in a sentence.
        training, holdout: Share of the attempts that succeed, in [0, 1].
        lower, upper: Interval of the difference of both shares, 95 % each, by a normal law: a measure, no bound.
        bound: Lower bound on epsilon. The bounds of all risks hold together at 95 %; they are no part of the verdict.
    """

    name: str
    meaning: str
    training: float
    holdout: float
    lower: float
    upper: float
    bound: Bound

    def __str__(self) -> str:
        return (
            f"{self.name}: {100 * self.training:.3g} % of training and {100 * self.holdout:.3g} % of holdout records, "
            f"epsilon >= {format_lower(self.bound.lower)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        shares = {"training": self.training, "holdout": self.holdout, "difference": [self.lower, self.upper]}
        return {"name": self.name, "meaning": self.meaning, **shares, "bound": self.bound.lower}


@dataclass(frozen=True, eq=False)
class GuessedPairs:
    """The guesses of one test.

    Attributes:
        name: Name of the test: "all pairs", "outliers", "rare words".
        share: Share of the error that the test has.
        pairs: Mask of the pairs that it guesses, shape (pairs,).
        scores: Guesses in their order, with the coins: the first guess has the largest |score|.
        bound: Bound at the confidence of the printed bounds, shared by all tests.
        strict: Bound at the confidence that a violation needs, shared by all tests.
    """

    name: str
    share: float
    pairs: NDArray[np.bool_]
    scores: Scores
    bound: Bound
    strict: Bound


@dataclass(frozen=True, eq=False)
class SyntheticAudit(Answered):
    """The verdict on a synthetic table; `print` shows it with all attacks and measures.

    Attributes:
        name: Name in the printed answer.
        tests: Records of the tests, from which the verdict is decided.
        guessed: The guesses of each test, in the order of `tests`.
        attacks: Each attack alone.
        risks: Records that are singled out, linked or inferred.
        measures: Measures that are commonly reported for synthetic tables; they decide nothing.
        utility: Errors of marginals, and a model that is trained on the synthetic rows and tested on the holdout.
        control: Tests of the split without the synthetic table.
        notes: Assumptions and counts, in sentences.
        doubts: The notes about these tables that a reader of the verdict must know.
        confidence: Confidence that a violation needs, over all tests together.
        rows: Numbers of rows of the training, holdout and synthetic tables.
        trained: True for the real rows of the training file, in the order of the attacks' scores, shape (real rows,).
        first_trained: Coins of the pairs, shape (pairs,).
        seconds: Wall time of each step, by name.
    """

    name: str
    tests: tuple[Test, ...]
    guessed: tuple[GuessedPairs, ...]
    attacks: tuple[AttackAlone, ...]
    risks: tuple[Risk, ...]
    measures: tuple[UsualMeasure, ...]
    utility: tuple[UtilityMeasure, ...]
    control: SplitControl
    notes: tuple[str, ...]
    doubts: tuple[str, ...]
    confidence: float
    rows: Mapping[str, int]
    trained: NDArray[np.bool_] = field(repr=False)
    first_trained: NDArray[np.bool_] = field(repr=False)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def record(self) -> Record:
        """Record from which the answer is decided; the largest bound comes first, for an answer without a claim."""
        lower = {pairs.name: pairs.bound.lower for pairs in self.guessed}
        return Record(self.name, tuple(sorted(self.tests, key=lambda test: -lower[test.name])), verb=Verb.SYNTHETIC)

    @property
    def epsilon(self) -> float:
        """Largest lower bound of all tests, for one replaced record or person; all hold together at 95 %."""
        return max(pairs.bound.lower for pairs in self.guessed)

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return self.first_trained.size

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        from dpaudit.engine.exits import plain_values

        tests = [
            {
                "name": test.name,
                "pairs": int(pairs.pairs.sum()),
                "share_of_error": pairs.share,
                "bound": pairs.bound.to_dict(),
                "strict_bound": pairs.strict.to_dict(),
                "exceeds_claim": test.exceeds,
                "p_value": test.p_value,
            }
            for test, pairs in zip(self.tests, self.guessed, strict=True)
        ]
        attacks = [
            {
                "name": attack.name,
                "accuracy": attack.accuracy,
                "bound_alone": attack.bound.lower,
                "seconds": attack.seconds,
            }
            for attack in self.attacks
        ]
        control = {
            "says": self.control.line,
            "p_value": self.control.p_value,
            "random": not self.control.doubt,
            "tests": self.control.tests,
        }
        values = {
            "verdict": self.verdict.value,
            "answer": self.answer.to_dict(),
            "epsilon": self.epsilon,
            "confidence": self.confidence,
            "pairs": self.pairs,
            "rows": self.rows,
            "tests": tests,
            "attacks": attacks,
            "risks": [risk.to_dict() for risk in self.risks],
            "control": control,
            "measures": self.measures,
            "utility": self.utility,
            "notes": self.notes,
            "seconds": self.seconds,
        }
        plain: dict[str, Any] = plain_values(values)
        return plain

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each number: kind, name, value, lower, upper, meaning."""
        import pandas as pd

        tests = [("test", pairs.name, pairs.bound.lower, pairs.bound.lower, np.inf, "") for pairs in self.guessed]
        attacks = [
            ("attack alone", attack.name, attack.bound.lower, attack.bound.lower, np.inf, ALONE)
            for attack in self.attacks
        ]
        attacks += [
            ("risk", each.name, each.bound.lower, each.bound.lower, np.inf, each.meaning) for each in self.risks
        ]
        measures = [
            ("usual measure", measure.name, measure.value, measure.lower, measure.upper, measure.means)
            for measure in self.measures
        ]
        names = ["kind", "name", "value", "lower", "upper", "meaning"]
        usefulness = [("utility", each.name, each.value, np.nan, np.nan, each.meaning) for each in self.utility]
        return pd.DataFrame([*tests, *attacks, *measures, *usefulness], columns=names)

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict with labelled lines below it; `verbose` adds all tests, attacks and measures."""
        risks = ", ".join(f"{risk.name} {format_lower(risk.bound.lower)}" for risk in self.risks)
        lines = [
            ("risks", f"epsilon >= {risks}"),
            ("split", self.control.line),
            *(("note", doubt) for doubt in self.doubts),
        ]
        if not verbose:
            return self.answer.text(lines)
        tests = [f"{test.name}: {claimed_and_observed(test)}" for test in self.record.tests]
        further = [
            *(f"  {line}" for line in (tests if len(tests) > 1 else [])),
            *(f"  {note}" for note in self.notes if note not in self.doubts),
            f"  {RISKS}",
            *(f"    {risk}" for risk in self.risks),
            *(f"  {attack}" for attack in self.attacks),
            f"  {USUAL}",
            *(f"    {measure}" for measure in self.measures),
            f"  {USEFUL}",
            *(f"    {each.name}: {each.value:.3f} ({each.reference:.3f})" for each in self.utility),
        ]
        return "\n".join([self.answer.text(lines, verbose=True), *map(printable_lines, further)])
