"""Audits find the planted defects in `examples/violations` and reject no honest twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpaudit import RunOptions, Verdict, audit, load_spec
from dpaudit.registry import catalogue
from tests.bank import planted_dp_sgd, planted_learners, planted_predictors
from tests.nightly import too

FOLDER = Path(__file__).parent.parent.parent / "examples" / "violations"
PREDICTORS = ("argmax-before-noise", "counted-twice", "half-the-noise", "twice-the-rate")
DEFECTS = ("sigma-for-b",)
LONG_DEFECTS = ("noise-averaged", "noise-redrawn", "prior-not-paid-for", "votes-without-noise")
"""`test_privacy_is_real.py` and `test_check.py` audit defects of the same kinds by day."""
UNSPECIFIED = {
    "tests.bank.planted_learners:AlibiSigmaForB",
    "tests.bank.planted_learners:RedrawnNoise",
    *(
        f"tests.bank.planted_dp_sgd:{name}DpSgd"
        for name in ("AccountedForOneEpoch", "ClipDoubled", "SampledTwiceAsOften")
    ),
}
"""`test_alibi.py` and `test_planted_laws.py` have the laws of labels, `test_dp_sgd_training.py` those of DP-SGD."""


@pytest.mark.parametrize("defect", [*DEFECTS, *(f"predictor-{defect}" for defect in PREDICTORS), *too(*LONG_DEFECTS)])
def test_the_defect_is_rejected_and_the_honest_twin_is_not(defect: str, tmp_path: Path) -> None:
    """The seed is fixed; with another seed the honest twin would be rejected with probability <= 0.05."""
    spec = replace(load_spec(FOLDER / f"{defect}.yaml"), run=RunOptions(runner="in-process"))
    report = audit(spec, output=tmp_path)
    honest, planted = report.results
    assert honest.verdict in (Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE)
    assert planted.verdict is Verdict.VIOLATION
    assert honest.comparison is not None
    assert planted.comparison is not None
    assert planted.compared.claim.epsilon <= honest.compared.claim.epsilon


@pytest.mark.parametrize(("defect", "trials"), [("half-the-noise", 256), ("clip-each-coordinate", 128)])
def test_the_curve_rejects_although_the_bound_at_its_delta_does_not(defect: str, trials: int, tmp_path: Path) -> None:
    """Trains models, with fewer trials than in the spec. The seed is fixed."""
    spec = load_spec(FOLDER / f"dp-sgd-{defect}.yaml")
    (entry,) = spec.audits
    fewer = replace(entry, game=replace(entry.game, trials=trials))
    (result,) = audit(replace(spec, audits=(fewer,), run=replace(spec.run, figures=False)), output=tmp_path).results
    assert result.verdict is Verdict.VIOLATION
    assert result.epsilon < result.compared.claim.epsilon
    assert result.violation_point is not None
    assert result.violation_point.observed > result.violation_point.claimed


def test_every_planted_defect_is_audited_by_a_spec() -> None:
    specs = "".join(path.read_text() for path in FOLDER.glob("*.yaml"))
    defects = {name for name, entry in catalogue("mechanism").items() if entry.source.startswith("planted defect")}
    bank = {
        f"{module.__name__}:{name}"
        for module in (planted_dp_sgd, planted_learners, planted_predictors)
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert not {name for name in defects | bank - UNSPECIFIED if name not in specs}
