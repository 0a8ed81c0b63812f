"""Records of some thirty situations, and the text printed for each.

`python -m tests.engine.answer_situations > tests/golden/answers.txt` renews the texts after an intended change of
wording.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpaudit import Claim
from dpaudit.claims import NO_FRACTIONS, ConvertedClaim, GaussianDP, Relation, Scope
from dpaudit.engine.answer.record import Confirmation, Failure, Record, Sensitivity, Test
from dpaudit.engine.answer.verdict import Verdict, decide
from dpaudit.engine.games.steps.noise import NoiseForm
from dpaudit.engine.planning.state_between_calls import StateBetweenCalls
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Validity

LOST = Failure("training 3", "key", "MemoryError")
LABEL, ROWS = Claim(4.0), Claim(1.0, relation=Relation.ADD_REMOVE)


def bound(lower: float, *, confidence: float = 0.95, guesses: int = 408, correct: int = 400, **more: Any) -> Bound:
    """Return a lower bound from guesses of fair coins."""
    counts = (("guesses", guesses), ("correct", correct), ("canaries", guesses))
    return Bound(lower, 0.0, confidence, "fair-coins", Validity.FINITE_SAMPLE, counts=counts, **more)


def record(lower: float | None, claim: Claim = LABEL, **more: Any) -> Test:
    """Return the record of one test with a bound, or without one."""
    finding = None if lower is None else bound(lower)
    usual: dict[str, Any] = {
        "name": "honest LP-1ST",
        "compared": ConvertedClaim(claim),
        "sensitivity": Sensitivity(factor=1.4, maximum=bound(5.49)),
        "units": (12, 12),
    }
    return Test(**{"claimed": claim, "finding": finding, **usual, **more})


def rejected(**more: Any) -> Test:
    """Return the record of a test whose confirmatory run rejects the claim."""
    again = bound(4.59, confidence=0.999, correct=408)
    return record(4.7, confirmation=Confirmation.CONFIRMED, repeated=again, p_value=1e-6, **more)


def side(scope: Scope, lower: float = 5.1, **more: Any) -> Test:
    """Return the record of a test of a side finding that is confirmed."""
    again = bound(lower, confidence=0.999)
    confirmed = {"confirmation": Confirmation.CONFIRMED, "repeated": again}
    return record(lower, ROWS, name=f"row-function, {scope}", scope=scope, **{**confirmed, **more})


def noise(p: float) -> NoiseForm:
    return NoiseForm(np.array([p, 0.5, 0.5, 0.5, 0.5]), 1.1)


@dataclass(frozen=True)
class Situation:
    """A record, the verdict it must lead to, and the rule that decides."""

    record: Record
    verdict: Verdict
    rule: str


def alone(test: Test) -> Record:
    return Record(test.name, (test,))


def together(*tests: Test, **more: Any) -> Record:
    return Record("check of a function", tests, **more)


SPLIT = "the split is not random: column age tells training from holdout rows without the synthetic table (p 1e-9)"
PROXY = {"on_proxy": True, "rows_needed": 9_000}
STATE = StateBetweenCalls(0.9, p_value=1e-9)
GAUSS = Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE, delta=1e-5)
BLIND = Sensitivity(maximum=bound(2.1), helps="more `canaries`")
STEP = ("the training: claimed epsilon 8 at delta=1e-05 for 100 steps",)

SITUATIONS: Mapping[str, Situation] = {
    "rejected": Situation(alone(rejected()), Verdict.VIOLATION, "claim-rejected"),
    "rejected without a confirmatory run": Situation(alone(record(4.7)), Verdict.VIOLATION, "claim-rejected"),
    "rejected, with a place": Situation(
        together(rejected(leak_location=("`result` moves by 1 from D to D', 2 times the scale of its noise.",))),
        Verdict.VIOLATION,
        "claim-rejected",
    ),
    "rejected, other tests not run": Situation(
        together(rejected(), not_played=("membership", "loss")), Verdict.VIOLATION, "claim-rejected"
    ),
    "rejected, low digits tell too": Situation(
        together(rejected(), side(Scope.FLOATING_POINT)), Verdict.VIOLATION, "claim-rejected"
    ),
    "the same release whatever the seed": Situation(
        together(rejected(state=StateBetweenCalls(1.0, always_equal=True))), Verdict.VIOLATION, "claim-rejected"
    ),
    "not rejected": Situation(alone(record(3.1, p_value=1.0)), Verdict.NO_VIOLATION, "not-rejected"),
    "not rejected, low digits tell": Situation(
        together(record(0.9, ROWS), side(Scope.FLOATING_POINT)), Verdict.NO_VIOLATION, "not-rejected"
    ),
    "not rejected, rows beyond the schema tell": Situation(
        together(record(0.9, ROWS), side(Scope.BEYOND_SCHEMA, 6.5)), Verdict.NO_VIOLATION, "not-rejected"
    ),
    "not rejected, a side test failed": Situation(
        together(record(0.9, ROWS), record(None, ROWS, name="digits", scope=Scope.FLOATING_POINT)),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "not confirmed": Situation(
        together(
            record(
                4.7,
                confirmation=Confirmation.NOT_CONFIRMED,
                repeated=bound(3.6, confidence=0.999),
                at_first_confidence=bound(3.8),
                p_value=0.2,
            )
        ),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "not rejected, not even much less noise would show": Situation(
        alone(record(3.1, sensitivity=Sensitivity(factor=math.inf, maximum=bound(5.49)))),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "not rejected, sensitivity unknown": Situation(
        alone(record(3.1, sensitivity=Sensitivity())), Verdict.NO_VIOLATION, "not-rejected"
    ),
    "not rejected, fewer trials than usual": Situation(
        together(record(3.1), cut="the budget allows fewer trainings than usual: membership 200 of 1,000"),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "not rejected, one test failed": Situation(
        together(record(3.1), record(None, name="membership", failures=(LOST,))),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "not rejected, a part only": Situation(
        together(record(0.9, ROWS, meaning_for_whole=STEP), record(0.8, ROWS, name="step 2", meaning_for_whole=STEP)),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "not rejected, converted claim": Situation(
        alone(record(1.5, compared=ConvertedClaim(Claim(2.0), "two records differ: epsilon 2 at delta=0", 2))),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "not rejected, a curve": Situation(
        alone(
            record(
                0.9,
                GAUSS,
                finding=replace(bound(0.9), delta=1e-5),
                sensitivity=Sensitivity(maximum=replace(bound(5.49), delta=1e-5)),
            )
        ),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "a curve, of which nothing could be detected": Situation(
        alone(record(0.9, GAUSS)), Verdict.INCONCLUSIVE, "cannot-detect"
    ),
    "state between calls": Situation(together(rejected(state=STATE)), Verdict.UNDECIDED, "state-between-calls"),
    "a proxy that is off": Situation(alone(record(4.7, **PROXY)), Verdict.UNDECIDED, "proxy"),
    "a proxy whose control failed": Situation(
        alone(record(4.7, control_lost=True, **PROXY)), Verdict.UNDECIDED, "proxy"
    ),
    "independence not stated": Situation(
        alone(record(4.7, assumed_method="two-samples")), Verdict.UNDECIDED, "independence-not-stated"
    ),
    "split not random": Situation(
        alone(replace(record(4.7, split_doubt=SPLIT), finding=bound(4.7).conditional_on_proxy())),
        Verdict.UNDECIDED,
        "split-not-random",
    ),
    "split not random, not rejected": Situation(
        alone(replace(record(3.1, split_doubt=SPLIT), finding=bound(3.1).conditional_on_proxy())),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "above the claim at less than full confidence": Situation(
        alone(record(4.7, confirmation=Confirmation.LESS_CONFIDENT)), Verdict.UNDECIDED, "confirmation-open"
    ),
    "not rejected, with the smallest leak that would be": Situation(
        alone(record(3.1, sensitivity=Sensitivity(maximum=bound(5.49), detectable="would detect 2 % copied rows"))),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "confirmatory run missing": Situation(
        together(record(4.7, confirmation=Confirmation.MISSING)), Verdict.UNDECIDED, "confirmation-open"
    ),
    "confirmatory run close": Situation(
        together(record(4.7, confirmation=Confirmation.CLOSE, at_first_confidence=bound(4.1))),
        Verdict.UNDECIDED,
        "confirmation-open",
    ),
    "confirmatory run far below a clear first pass": Situation(
        together(
            record(
                3.6,
                ROWS,
                confirmation=Confirmation.NOT_CONFIRMED,
                at_first_confidence=bound(0.2),
                p_value=1.0,
                first_p_value=1e-6,
            )
        ),
        Verdict.UNDECIDED,
        "results-change",
    ),
    "confirmatory run below a first pass that chance explains": Situation(
        together(
            record(
                1.2,
                ROWS,
                confirmation=Confirmation.NOT_CONFIRMED,
                at_first_confidence=bound(0.2),
                p_value=1.0,
                first_p_value=1e-5,
            )
        ),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "digits that cannot tell": Situation(
        together(
            record(1.2, ROWS, confirmation=Confirmation.NOT_CONFIRMED, at_first_confidence=bound(0.9)),
            side(Scope.FLOATING_POINT, leak_location=(NO_FRACTIONS,)),
        ),
        Verdict.UNDECIDED,
        "digits-cannot-tell",
    ),
    "an average record that is worse than the worst one": Situation(
        together(record(0.9, ROWS), side(Scope.AVERAGE_RECORD)), Verdict.UNDECIDED, "average-record"
    ),
    "not rejected, a side test that is not settled": Situation(
        together(record(0.9, ROWS), side(Scope.BEYOND_SCHEMA, confirmation=Confirmation.MISSING)),
        Verdict.NO_VIOLATION,
        "not-rejected",
    ),
    "noise that is not stated": Situation(
        together(record(0.9, ROWS, noise=noise(1e-13))), Verdict.UNDECIDED, "stated-noise"
    ),
    "gradients without noise": Situation(
        alone(record(0.9, ROWS, without_noise="the gradient of 1 parameters (wte) had entries of exactly 0 in a step")),
        Verdict.UNDECIDED,
        "without-noise",
    ),
    "gradients without noise, nothing claimed": Situation(
        alone(record(0.9, Claim(math.inf), without_noise="the gradient of 1 parameters had entries of exactly 0")),
        Verdict.NO_CLAIM,
        "no-claim",
    ),
    "a training other than the claimed one": Situation(
        alone(record(0.9, ROWS, differs_from_claim="not Poisson sampling: each of 80 batches held 20 records")),
        Verdict.UNDECIDED,
        "other-training",
    ),
    "noise that is hardly odd": Situation(
        together(record(0.9, ROWS, noise=noise(1e-5))), Verdict.NO_VIOLATION, "not-rejected"
    ),
    "results that cannot be read": Situation(
        alone(record(0.0, ROWS, unreadable=("a Box object without public attributes",))),
        Verdict.INCONCLUSIVE,
        "unreadable-results",
    ),
    "nothing could be detected": Situation(
        alone(record(0.9, sensitivity=BLIND)), Verdict.INCONCLUSIVE, "cannot-detect"
    ),
    "nobody knows what could be detected": Situation(
        alone(record(0.9, sensitivity=Sensitivity(reference_failed=True))), Verdict.INCONCLUSIVE, "cannot-detect"
    ),
    "nothing claimed": Situation(alone(record(0.9, Claim(math.inf))), Verdict.NO_CLAIM, "no-claim"),
    "nothing finished": Situation(
        alone(record(None, failures=(LOST, replace(LOST, label="training 4")))),
        Verdict.FAILED,
        "nothing-usable",
    ),
    "no test was run": Situation(together(), Verdict.FAILED, "nothing-usable"),
}


def texts() -> str:
    """Return the printed text of all situations."""
    return (
        "\n\n".join(f"# {name}\n{decide(each.record).text(verbose=True)}" for name, each in SITUATIONS.items()) + "\n"
    )


def planted(situation: Situation, **changed: Any) -> Record:
    """Return the record of a situation with fields of its first test changed."""
    first, *others = situation.record.tests
    return replace(situation.record, tests=(replace(first, **changed), *others))


if __name__ == "__main__":
    print(texts(), end="")
