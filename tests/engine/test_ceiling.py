"""Maximum detectable epsilon: an audit that could not have rejected its claim reports that."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit import Audit, AuditSpec, Claim, audit
from dpaudit.claims import claim_under
from dpaudit.engine.answer.record import Record, Sensitivity, Test
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.answer.verdict import COLOURS, Verdict, decide
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.labels.label_channel import LabelChannel
from dpaudit.engine.games.labels.label_crafted import LabelCrafted
from dpaudit.engine.games.labels.label_repeats import LabelRepeats
from dpaudit.engine.games.neighbours.game import Neighbours
from dpaudit.engine.games.neighbours.poisonings.regression import OpposingRecords
from dpaudit.engine.games.neighbours.poisonings.rows import CornerFlip
from dpaudit.engine.games.one_run.label_inference import LabelCanaries, LabelInference
from dpaudit.engine.games.one_run.membership import Membership, ObservationalMembership
from dpaudit.engine.games.two_world.game import IndMia
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.driver import report_again
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Validity
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.gaussian_naive_bayes import ClassSums, GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_regression import LogisticObjectivePerturbation, LogisticOutputPerturbation
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.tables import LogisticRegression

IN_PROCESS = RunOptions(runner="in-process", figures=False)


@dataclass(frozen=True)
class Publisher:
    """Mechanism that publishes every label and claims privacy."""

    epsilon: float = 1.0

    def claim(self) -> Claim:
        return Claim(epsilon=self.epsilon)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return labels


def separable(rows: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return two classes that the features separate, except for one row in a hundred."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, rows)
    features = rng.normal(size=(rows, 4)) + 3.0 * labels[:, None]
    return features, np.where(rng.random(rows) < 0.01, 1 - labels, labels)


def run(folder: Path, *audits: Audit, **options: bool) -> Report:
    return audit(AuditSpec(audits, run=replace(IN_PROCESS, **options)), output=folder, quiet=True)


def test_publisher_of_labels_does_not_pass_if_features_determine_the_labels(tmp_path: Path) -> None:
    report = run(tmp_path, Audit(mechanism=Publisher(), data=separable(1372)))
    (result,) = report.results
    assert result.verdict is Verdict.INCONCLUSIVE
    assert report.inconclusive == (result,)
    maximum = result.sensitivity.maximum
    assert result.sensitivity.played
    assert isinstance(maximum, Bound)
    assert maximum.lower <= 1.0
    text = " ".join(str(report).split())
    assert "INCONCLUSIVE audit claim epsilon <= 1 (label, delta = 0) lower bound epsilon >= 0.0" in text
    reason = result.answer.line("reason")
    assert reason.startswith("the maximum detectable epsilon is 0.")
    assert "and the claim allows epsilon 1" in reason
    more = "To detect a leak: use more rows in the target part, or `game: label-canaries`"
    assert more in result.answer.line("next")
    assert result.answer.rule == "cannot-detect"
    assert COLOURS[Verdict.INCONCLUSIVE] in (tmp_path / "report.html").read_text()
    (stored,) = json.loads((tmp_path / "bounds.json").read_text())["results"]
    assert stored["verdict"] == "INCONCLUSIVE"
    assert stored["ceiling"]["lower"] == maximum.lower
    assert [again.verdict for again in report_again(tmp_path).results] == [Verdict.INCONCLUSIVE]


@pytest.mark.parametrize("game", [LabelInference(replays=4), LabelCanaries(replays=4)])
def test_a_publisher_reaches_the_ceiling_of_its_game(tmp_path: Path, game: LabelInference | LabelCanaries) -> None:
    """The ceiling uses the same mechanism, so the bounds differ only by the random draw of the other labels."""
    data = GaussianMixture(rows=4000)
    report = run(tmp_path, Audit(mechanism=Publisher(epsilon=0.5), data=data, proxy="true-posterior", game=game))
    (result,) = report.results
    assert result.verdict is Verdict.VIOLATION
    assert isinstance(result.finding, Bound)
    assert result.sensitivity.maximum is not None
    # The replays of the ceiling are replays of this game, of the same seeds.
    assert result.sensitivity.maximum.comparison(result.compared.claim.curve).observed == result.finding.lower
    assert "maximum detectable epsilon " in result.answer.line("sensitivity")
    assert result.answer.line("sensitivity") in str(result)


def test_claim_does_not_pass_while_its_ceiling_is_lost(tmp_path: Path) -> None:
    audit_entry = Audit(
        mechanism=RandomizedResponse(epsilon=1.0), data=GaussianMixture(rows=4000), proxy="true-posterior"
    )
    whole = run(tmp_path, audit_entry)
    assert whole.results[0].verdict is Verdict.NO_VIOLATION
    (entry,) = make_plan(load_spec(tmp_path / "spec.yaml")).audits
    for key in entry.ceilings:
        (tmp_path / "units" / f"{key}.parquet").write_bytes(b"damaged")
    (again,) = report_again(tmp_path).results
    assert again.finding == whole.results[0].finding
    assert again.verdict is Verdict.INCONCLUSIVE
    assert "it is unknown whether a leak would be detected" in again.answer.line("reason")
    assert "unknown: the reference run that measures the maximum detectable epsilon failed" in again.answer.line(
        "sensitivity"
    )


def test_ceiling_of_a_learner_uses_its_labels_as_answers(tmp_path: Path) -> None:
    """The bound of a learner that smooths is below the ceiling. Counts without stored scores are equal."""
    learner = NonPrivate(LogisticRegression())
    entry = Audit(mechanism=learner, data=GaussianMixture(rows=2000), proxy="true-posterior", claim=Claim(epsilon=0.2))
    with_scores, counted = (run(tmp_path / str(keep), entry, keep_scores=keep).results[0] for keep in (True, False))
    assert with_scores.sensitivity.maximum is not None
    assert counted.sensitivity.maximum is not None
    assert with_scores.sensitivity.maximum == counted.sensitivity.maximum
    assert isinstance(with_scores.finding, Bound)
    assert isinstance(with_scores.sensitivity.maximum, Bound)
    assert with_scores.finding.lower < with_scores.sensitivity.maximum.lower


@pytest.mark.parametrize(
    ("game", "epsilon", "expected"),
    [
        (Membership(canaries=40), 20.0, Verdict.INCONCLUSIVE),
        (Membership(canaries=40), 2.0, Verdict.NO_VIOLATION),
        (ObservationalMembership(canaries=40, replays=3), 20.0, Verdict.INCONCLUSIVE),
        (IndMia(trials=20, shadows=4, stack=32, population=8), 8.0, Verdict.INCONCLUSIVE),
    ],
)
def test_ceiling_is_exact_if_every_bit_can_be_guessed(
    tmp_path: Path, game: object, epsilon: float, expected: Verdict
) -> None:
    entry = Audit(
        mechanism=NonPrivate(LogisticRegression()),
        data=GaussianMixture(rows=400),
        game=game,
        claim=Claim(epsilon=epsilon, relation=game.traits.relation),  # type: ignore[attr-defined]
    )
    (result,) = run(tmp_path, entry).results
    assert result.sensitivity.maximum is not None
    assert not result.sensitivity.played
    assert result.verdict is expected


def could_reject(result: AuditResult, claim: Claim) -> bool:
    """True if a mechanism with no privacy would be rejected, for any detectable noise factor."""
    return replace(result.sensitivity, factor=None).could_reject(claim)


def test_maximum_equal_to_the_claim_cannot_reject() -> None:
    bound = Bound(1.0, 0.0, 0.95, "one-run", Validity.FINITE_SAMPLE)
    sensitivity = Sensitivity(maximum=bound, helps="more trials")
    assert not sensitivity.could_reject(Claim(epsilon=1.0))
    assert sensitivity.could_reject(Claim(epsilon=0.999))
    assert not replace(sensitivity, reference_failed=True).could_reject(Claim(epsilon=0.999))
    claim = Claim(epsilon=1.0)
    quiet = replace(bound, lower=0.5)
    test = Test("audit", claim, claim_under(claim, claim.relation), quiet, sensitivity=sensitivity)
    answer = decide(Record("audit", (test,)))
    assert answer.verdict is Verdict.INCONCLUSIVE
    assert answer.line("reason").startswith("the maximum detectable epsilon is 1.000 at delta = 0")
    assert answer.line("reason").endswith("the claim allows epsilon 1")
    assert answer.line("next").endswith("To detect a leak: use more trials.")


@dataclass(frozen=True)
class Mute:
    """Mechanism whose release does not depend on the labels, with or without noise."""

    def claim(self) -> Claim:
        return Claim(epsilon=1.0)

    def without_noise(self) -> Mute:
        return self

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return rng.integers(0, classes, labels.size)


@pytest.mark.parametrize(
    "game",
    [
        LabelChannel(releases=5),
        LabelRepeats(trials=400),
        pytest.param(LabelCrafted(search=100, releases=100, canaries=400), marks=pytest.mark.nightly),
    ],
)
def test_label_mechanisms_are_played_without_their_noise(tmp_path: Path, game: object) -> None:
    data = GaussianMixture(rows=800)
    response, mute, publisher = run(
        tmp_path,
        *(
            Audit(mechanism, data=data, game=game, name=type(mechanism).__name__)  # type: ignore[arg-type]
            for mechanism in (RandomizedResponse(epsilon=1.0), Mute(), Publisher())
        ),
    ).results
    assert response.verdict is Verdict.NO_VIOLATION
    assert response.sensitivity.maximum is not None
    assert response.sensitivity.noiseless
    assert could_reject(response, Claim(epsilon=3.0))
    sensitivity = response.answer.line("sensitivity")
    assert re.search(r"maximum detectable epsilon [3-9]\.\d+ .*\(measured without noise\)", sensitivity)
    assert mute.verdict is Verdict.INCONCLUSIVE
    assert "the maximum detectable epsilon is 0" in mute.answer.line("reason")
    assert publisher.verdict is Verdict.VIOLATION
    assert publisher.sensitivity.maximum is None or not publisher.sensitivity.noiseless


class Silent(GaussianNaiveBayes):
    """Learner that counts invented records."""

    def sums(self, train: Examples) -> ClassSums:
        made_up = np.random.default_rng(0)
        return super().sums(train.with_(features=made_up.random((len(train), 2)), labels=np.arange(len(train)) % 2))


@pytest.mark.parametrize(
    "learner",
    [
        GaussianNaiveBayes(1.0),
        LogisticOutputPerturbation(1.0),
        LogisticObjectivePerturbation(1.0),
        Silent(1.0),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_learners_are_played_without_their_noise(tmp_path: Path, learner: GaussianNaiveBayes) -> None:
    by_length = not isinstance(learner, GaussianNaiveBayes)
    poisoning = CornerFlip() if not by_length else OpposingRecords()
    game = Neighbours(trials=600, search=600, poisoning=poisoning, scale="ball" if by_length else "box")
    (result,) = run(tmp_path, Audit(learner, data=GaussianMixture(rows=100, dimensions=2), game=game)).results
    assert result.sensitivity.maximum is not None
    assert result.sensitivity.noiseless
    if isinstance(learner, Silent):
        assert result.verdict is Verdict.INCONCLUSIVE
        assert "the maximum detectable epsilon is 0" in result.answer.line("reason")
    else:
        assert result.verdict is Verdict.NO_VIOLATION
        assert could_reject(result, Claim(epsilon=4.0, relation=result.compared.claim.relation))


def test_rejection_at_a_smaller_factor_outweighs_a_short_run_without_noise(tmp_path: Path) -> None:
    """With 500 trials the exact labels give a bound below the claim; 40,000 noisy trials would give more."""
    game = LabelChannel(releases=100)
    entry = Audit(RandomizedResponse(epsilon=5.5), data=GaussianMixture(rows=800), game=game)
    (result,) = run(tmp_path, entry).results
    assert result.sensitivity.maximum is not None
    assert not could_reject(result, Claim(epsilon=5.5))
    assert result.verdict is Verdict.NO_VIOLATION
    assert re.search(r"would detect noise scaled down \d\.\d+ times or more", result.answer.line("sensitivity"))
