"""Tracebacks of `AuditError` show the caller's code, not dpaudit's."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dpaudit
from dpaudit.errors import AuditError, InputError, SpecError

HERE = __file__


def _files(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def _refused(function: Any, *arguments: Any, **keywords: Any) -> AuditError:
    with pytest.raises(AuditError) as refused:
        function(*arguments, **keywords)
    return refused.value


def test_frames_of_dpaudit_are_dropped() -> None:
    for error in (
        _refused(dpaudit.estimate, [1.0, 2.0], [0, 3]),
        _refused(dpaudit.check, "no-such-mechanism", quiet=True),
        _refused(dpaudit.audit, "no-such-file.yaml"),
        _refused(dpaudit.sweep, "no-such-file.yaml"),
    ):
        assert set(_files(error)) == {HERE}


def test_type_and_cause_are_kept() -> None:
    error = _refused(dpaudit.audit, "no-such-file.yaml")
    assert isinstance(error, SpecError)
    assert isinstance(error.__cause__, FileNotFoundError)
    assert isinstance(_refused(dpaudit.estimate, [1.0], [0, 1]), AuditError)


class Mine:
    """A mechanism whose `claim` fails."""

    def claim(self) -> dpaudit.Claim:
        raise InputError("my own sentence")

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return labels


def test_frames_of_user_code_are_kept() -> None:
    files = _files(_refused(dpaudit.check, Mine(), quiet=True))
    assert files[0] == files[-1] == HERE


def test_the_environment_variable_shows_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    short = len(_files(_refused(dpaudit.check, "no-such-mechanism")))
    monkeypatch.setenv("DPAUDIT_TRACEBACK", "1")
    assert len(_files(_refused(dpaudit.check, "no-such-mechanism"))) > short + 2


def test_other_errors_keep_every_frame() -> None:
    def broken(message: str) -> None:
        raise RuntimeError(message)

    from dpaudit.errors import short_tracebacks

    with pytest.raises(RuntimeError) as raised:
        short_tracebacks(broken)("not foreseen")
    assert raised.traceback[-1].name == "broken"
