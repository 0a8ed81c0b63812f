"""The planted defects in `examples/violations` are caught, and their honest twins are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpaudit import RunOptions, Verdict, audit, load_spec

FOLDER = Path(__file__).parent.parent.parent / "examples" / "violations"
DEFECTS = ("noise-averaged", "noise-redrawn", "prior-not-paid-for", "sigma-for-b", "votes-without-noise")


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_defect_is_caught_and_the_honest_twin_is_not(defect: str, tmp_path: Path) -> None:
    """The seed is fixed; with another one the honest twin would be accused with probability <= 0.05."""
    spec = replace(load_spec(FOLDER / f"{defect}.yaml"), run=RunOptions(runner="in-process"))
    report = audit(spec, output=tmp_path)
    honest, planted = report.results
    assert honest.verdict in (Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE)
    assert planted.verdict is Verdict.VIOLATION
    assert honest.standing is not None
    assert planted.standing is not None
    assert planted.compared.claim.epsilon <= honest.compared.claim.epsilon
