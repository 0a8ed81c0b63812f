"""An error that audited code raises on all data is the first line of the answer, with the file and line of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dpaudit
from dpaudit import Audit, AuditSpec, Claim, Relation, RunOptions, Verdict
from dpaudit.errors import described, error_of_code
from dpaudit.mechanisms.examples import Examples

HERE = RunOptions(runner="in-process", figures=False)
FEW = {"name": "label-crafted", "search": 60, "releases": 4, "canaries": 40}


class UnknownName:
    """A label mechanism and a learner with a name that is not defined."""

    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.LABEL)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> Any:
        return labels + undefined_name  # type: ignore[name-defined] # noqa: F821

    def fit(self, train: Examples, **_: Any) -> Any:
        return undefined_name.fit(train)  # type: ignore[name-defined] # noqa: F821


class LabelsOnly:
    """A label mechanism without the arguments that `release` gets."""

    claim = UnknownName.claim

    def release(self, labels: NDArray[np.int64]) -> Any:
        return labels


class LearnerOnly:
    claim = UnknownName.claim
    fit = UnknownName.fit


class RecordLearner(LearnerOnly):
    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.ADD_REMOVE)


class Predictor:
    claim = RecordLearner.claim

    def answers(self, train: Examples, queries: Any, **_: Any) -> Any:
        return train.no_such_attribute  # type: ignore[attr-defined]


def trains(features: Any, labels: Any, seed: int) -> Any:
    import no_such_module  # type: ignore[import-not-found]

    return no_such_module


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.strip().startswith(text))
    return f"(line {number} of {Path(__file__).name})"


NAME = "NameError: name 'undefined_name' is not defined"
CALLED = dpaudit.from_callable(trains, Claim(1.0, relation=Relation.ADD_REMOVE))


@pytest.mark.parametrize(
    ("mechanism", "error", "line"),
    [
        (UnknownName(), NAME, "return labels + undefined_name"),
        (LabelsOnly(), "TypeError: LabelsOnly.release() got an unexpected keyword argument 'classes'", ""),
        (LearnerOnly(), NAME, "return undefined_name.fit"),
        (RecordLearner(), NAME, "return undefined_name.fit"),
        (Predictor(), "AttributeError: 'Examples' object has no attribute 'no_such_attribute'", "return train.no_such"),
        (CALLED, "ModuleNotFoundError: No module named 'no_such_module'", "import no_such_module"),
    ],
)
def test_the_error_of_the_code_comes_first(mechanism: Any, error: str, line: str, tmp_path: Path) -> None:
    if mechanism.claim().relation is Relation.LABEL:
        spec = AuditSpec(
            (Audit(mechanism=mechanism, game=FEW, data={"name": "gaussian-mixture", "rows": 100}),), run=HERE
        )
        report = dpaudit.audit(spec, output=tmp_path, quiet=True)
    else:
        report = dpaudit.check(mechanism, run=HERE, output=tmp_path, quiet=True, effort="quick")
    (answer,) = {answer.text(): answer for answer in report.answers}.values()
    assert answer.verdict is Verdict.FAILED
    assert answer.lines[0] == ("error", f"{error} {line_of(line)}" if line else error)
    assert error in answer.headline


def test_a_cause_and_its_line_are_described() -> None:
    def wrapped() -> None:
        try:
            trains(None, None, 0)
        except ImportError as err:
            raise ValueError("cannot train") from err

    with pytest.raises(ValueError, match="cannot train") as raised:
        wrapped()
    words = described(raised.value)
    assert words == f"ValueError: cannot train {line_of('import no_such_module')}"
    assert (
        error_of_code(f"dpaudit.errors.RunError: no data set fits: first: TrainingError: {words}; second: x") == words
    )
    assert error_of_code("RunError: nothing fits") == ""
