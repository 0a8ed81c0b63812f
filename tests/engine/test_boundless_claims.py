"""Claims without a practical promise, as "no privacy" is often written: e to the power of epsilon may overflow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dpaudit import Audit, AuditSpec, Claim, Relation, RunOptions, audit
from dpaudit.claims import (
    ApproximateDP,
    ComposedLaplace,
    GaussianDP,
    PrivacyCurve,
    PrivacyProfile,
    PureDP,
    RenyiDP,
    claim_under,
    two_steps,
)
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.cli.main import main
from dpaudit.engine.figures.finding_figures import finding_figures
from dpaudit.engine.report.page import power_of_e
from dpaudit.errors import SpecError
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Validity
from dpaudit.registry import load
from tests.nightly import too

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

EPSILONS = (709.0, 710.0, 1e4, 1e308)  # e^709 is the last of these that is finite
DELTAS = (0.0, 1e-5)


def curves(epsilon: float) -> Iterator[PrivacyCurve]:
    """Yield privacy curves with about this epsilon."""
    yield PureDP(epsilon)
    yield ApproximateDP(epsilon, 1e-5)
    yield GaussianDP(epsilon)
    yield RenyiDP((2.0,), (epsilon,))
    yield RenyiDP((2.0, 8.0, 64.0), (epsilon / 3, epsilon / 2, epsilon))
    yield PrivacyProfile((0.0, epsilon), (1.0, 0.0))
    yield PrivacyProfile((0.0, 1.0, epsilon), (1.0, 0.5, 1e-6))
    if epsilon < 1e300:  # a grid of losses
        yield ComposedLaplace(1 / epsilon, 1)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_face_of_every_curve_is_finite(epsilon: float) -> None:
    for curve in curves(epsilon):
        for steps in (curve, two_steps(curve)):
            deltas = [steps.delta(at) for at in (0.0, 1.0, 700.0, 5e3, epsilon / 2, epsilon, 1e308, math.inf)]
            assert all(0 <= delta <= 1 for delta in deltas), (steps, deltas)
            assert deltas[1] > 0.49, (steps, "so large an epsilon promises nothing at epsilon 1")
            assert all(steps.epsilon(delta) >= 0 for delta in (0.0, 1e-300, 1e-5, 0.5, 1.0)), steps
            assert all(0 <= steps.miss_rate(alarm) <= 1 for alarm in (0.0, 1e-300, 0.5, 1.0)), steps
            assert all(steps.renyi(order) >= 0 for order in (1.0001, 2.0, 64.0)), steps


def test_faces_with_overflowing_powers_of_e_equal_the_formulas() -> None:
    """Check cases with overflowing powers of e that cancel: (e^x - e^l) / (e^r - e^l) on a chord, divergences of one
    bit."""
    chord = PrivacyProfile((0.0, 1e4), (1.0, 0.0))
    assert chord.delta(1e4 - 1) == pytest.approx(1 - math.exp(-1), rel=1e-12)
    assert chord.epsilon(1 - math.exp(-1)) == pytest.approx(1e4 - 1, rel=1e-12)
    assert PureDP(1e4).renyi(2.0) == 1e4
    assert PureDP(690.0).renyi(2.0) == pytest.approx(690.0, rel=1e-12)
    assert two_steps(RenyiDP((2.0,), (1e4,))) == RenyiDP((4 / 3,), (3e4,)), "order 2 is in both terms of the triangle"


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_claims_are_converted_between_relations_and_groups(epsilon: float) -> None:
    for stated in Relation:
        claims = [Claim(epsilon, delta, stated) for delta in DELTAS]
        for claim in [*claims, *(Claim.of(curve, relation=stated, delta=1e-5) for curve in curves(epsilon))]:
            for played in Relation:
                for records in (1, 2, 8) if claim.is_point else (1,):  # group conversion of a curve takes long
                    try:
                        converted = claim_under(claim, played, records=records).claim
                    except SpecError:  # a claim about labels implies nothing about records; none implies zero-out
                        assert stated is not played
                        assert stated is not Relation.ADD_REMOVE or played is Relation.ZERO_OUT
                        continue
                    assert converted.epsilon >= claim.epsilon * (1 - 1e-9), (claim, played, records)
                    assert str(converted)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of a run whose claims promise nothing."""
    data = {"name": "gaussian-mixture", "rows": 200}
    audits = [
        Audit(
            {"name": "randomized-response", "epsilon": epsilon},
            data,
            {"name": "label-canaries", "replays": 2},
            claim=Claim(epsilon, delta),
            name=f"{epsilon:g} at {delta:g}",
        )
        for epsilon, delta in zip(EPSILONS, (0.0, 0.0, 1e-5, 0.0), strict=True)
    ]
    spec = AuditSpec(tuple(audits), run=RunOptions(runner="in-process"))
    return audit(spec, output=tmp_path_factory.mktemp("run") / "run", quiet=True)


@pytest.mark.figures
def test_a_report_has_its_figures(report: Report) -> None:
    page = (Path(str(report.folder)) / "report.html").read_text(encoding="utf-8")
    assert "8.22e+307 at ε = 709, 10^308.349 at ε = 710, 10^4342.94 at ε = 10000, 10^4.34294e+307 at ε = 1e+308" in page
    assert page.count("<svg") > len(report.results)
    for result in report.results:
        assert result.epsilon > 1, result.name
        assert f"claimed epsilon {result.claimed.epsilon:g}, observed epsilon" in result.headline
        assert str(result)
        assert result._repr_html_()
    assert "claim        epsilon <= 1e+308" in str(report)
    ended = CliRunner().invoke(main, ["card", str(report.folder)])
    assert ended.exit_code == 0, ended.output
    assert "1e+308" in ended.output


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_an_estimate_can_be_text_json_and_a_page(epsilon: float, delta: float, tmp_path: Path) -> None:
    rows = [f"{place % 10 + 5 * (place % 2)},{place % 2}" for place in range(400)]
    (tmp_path / "scores.csv").write_text("\n".join(["score,member", *rows]))
    words = ["estimate", str(tmp_path / "scores.csv"), "--claim", f"{epsilon},{delta}"]
    for more in ([], ["--json"], ["-o", str(tmp_path / "page.html")]):
        result = CliRunner().invoke(main, [*words, *more])
        assert result.exit_code == 0, result.output
        assert f"{epsilon:g}" in result.output.replace(".0", ""), result.output
    assert f"{epsilon:g}" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("claim", ["710", "mu=1e308", *too("1e308,1e-5", "rho=1e308")])
def test_a_check_has_a_verdict_and_a_card(claim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counted.py").write_text("def count(rows, rng):\n    return float(len(rows))\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["check", "counted:count", "--schema", "{age: [0, 100]}", "--claim", claim, "--budget", "1s", "--quiet"]
    result = CliRunner().invoke(main, [*words, "-o", "run"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("INCONCLUSIVE"), result.output
    assert CliRunner().invoke(main, ["card", "run", "--html", "card.html"]).exit_code == 0


def test_a_claim_too_large_to_draw_is_left_out_of_a_chart() -> None:
    curves = {}
    for epsilon in (4.0, 699.0, *EPSILONS, math.inf):
        series = {"trials": {"trials": np.array([1, 2]), "epsilon": np.array([0.1, 0.2])}}
        bound = Bound(0.2, 0.0, 0.95, "m", Validity.FINITE_SAMPLE, series=series)
        (picture,) = finding_figures(bound, Claim(epsilon))
        (axes,) = picture.figure.axes
        curves[epsilon] = [float(np.asarray(line.get_ydata())[0]) for line in axes.lines[1:]]
    assert curves == {4.0: [4.0], 699.0: [699.0]} | {epsilon: [] for epsilon in (*EPSILONS, math.inf)}


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_mechanisms_accept_a_large_epsilon(epsilon: float) -> None:
    bags = load("mechanism", "llp-geometric")(epsilon=epsilon, unbiased=True)
    counts = np.array([[3, 1], [0, 4]])
    np.testing.assert_allclose(bags.release_counts(counts, rng=np.random.default_rng(0)), counts, atol=1e-300)
    for penalty in (1e-9, 1e-300):  # so small that the noise alone does not suffice
        learner = load("mechanism", "logistic-objective-perturbation")(epsilon=epsilon, penalty=penalty)
        extra, scale = learner.noise(100, 2)
        assert -penalty <= extra < 1
        assert 0 < scale < math.inf


def test_a_power_of_e_has_three_digits() -> None:
    assert [power_of_e(at) for at in (0.0, 1.0, 4.0, 709.0)] == ["1", "2.72", "54.6", "8.22e+307"]
    assert [power_of_e(at) for at in (710.0, 1e4)] == ["10^308.349", "10^4342.94"]
