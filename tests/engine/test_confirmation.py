"""`confirm: true`: a rejection or an open result of an observational game is tested again without a proxy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit import Audit, AuditSpec, Claim, Report, RunOptions, audit
from dpaudit.claims import Relation
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.driver import report_again
from dpaudit.errors import SpecError
from dpaudit.estimators.finding import Validity
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.learners.recalled_labels import Recall


@dataclass(frozen=True)
class AlwaysTheFirst:
    """A proxy that predicts class 0 with high probability for all features."""

    def predictor(self, **_: object) -> object:
        def predict(examples: Any) -> NDArray[np.float64]:
            return np.tile([0.9, 0.1], (len(examples), 1))

        return predict


HONEST = Audit(
    mechanism=RandomizedResponse(0.3),
    data=GaussianMixture(rows=3_000),
    game=LabelInference(replays=2),
    proxy=AlwaysTheFirst(),
    split=Partition(target=0.6, reference=0.0, test=0.4),
    confirm=True,
    name="honest",
)
LEAKY = replace(HONEST, mechanism=NonPrivate(Recall()), claim=Claim(1.0), name="leaky")
SILENT = replace(HONEST, mechanism=RandomizedResponse(0.2), claim=Claim(8.0), name="silent")


def spec_of(*audits: Audit) -> AuditSpec:
    return AuditSpec(audits, seed=2, run=RunOptions(runner="in-process", figures=False))


def verdicts(report: Report) -> dict[str, Verdict]:
    return {result.name: result.verdict for result in report.results}


def test_open_results_are_decided_by_planted_labels(tmp_path: Path) -> None:
    """The honest mechanism passes with probability >= 0.95 over seeds; the seed is fixed."""
    report = audit(spec_of(HONEST, LEAKY, SILENT), output=tmp_path)
    assert verdicts(report) == {
        "honest": Verdict.UNDECIDED,
        "honest, confirmed by label-canaries": Verdict.NO_VIOLATION,
        "leaky": verdicts(report)["leaky"],
        "leaky, confirmed by label-canaries": Verdict.VIOLATION,
        "silent": Verdict.INCONCLUSIVE,  # a claim of 8 is above the maximum detectable epsilon
    }
    confirmed = report.results[3]
    assert confirmed.finding is not None
    assert confirmed.finding.validity is Validity.FINITE_SAMPLE
    assert not confirmed.observational
    # Audits with nothing to confirm run no confirmatory unit.
    entry = next(entry for entry in make_plan(spec_of(HONEST, LEAKY, SILENT)).audits if entry.confirms == "silent")
    assert not entry.keys & {path.stem for path in (tmp_path / "units").iterdir()}
    assert verdicts(report_again(tmp_path)) == verdicts(report)


def test_a_confirmation_resumes(tmp_path: Path) -> None:
    alone = audit(spec_of(replace(LEAKY, confirm=False)), output=tmp_path)
    first = make_plan(spec_of(replace(LEAKY, confirm=False)))
    both = make_plan(spec_of(LEAKY))
    added = {unit.key for unit in both.units} - {unit.key for unit in first.units}
    report = audit(spec_of(LEAKY), output=tmp_path)
    assert report.executed == len(added) > 0  # the first game is not run again
    assert report.results[0].verdict is alone.results[0].verdict
    lost_units = sorted(added)[: len(added) // 2]
    for key in lost_units:
        (tmp_path / "units" / f"{key}.parquet").unlink()
    again = audit(spec_of(LEAKY), output=tmp_path)
    assert again.executed >= len(lost_units)
    assert verdicts(again) == verdicts(report)
    assert audit(spec_of(LEAKY), output=tmp_path).executed == 0


def test_a_game_without_a_proxy_is_not_confirmed() -> None:
    planned = make_plan(spec_of(replace(HONEST, game={"name": "label-canaries", "replays": 2})))
    assert [entry.confirms for entry in planned.audits] == [""]


def test_confirm_in_a_spec_is_refused_for_games_of_several_trainings() -> None:
    words = {"mechanism": {"name": "randomized-response", "epsilon": 1.0}, "data": "iris", "confirm": True}
    (loaded,) = load_spec(words).audits
    assert loaded.confirm
    claim = {"epsilon": 1.0, "relation": Relation.REPLACE.value}
    many = {"mechanism": {"name": "non-private"}, "data": "iris", "game": "mia", "confirm": True, "claim": claim}
    with pytest.raises(SpecError, match="confirm is for games with one training"):
        load_spec(many)
