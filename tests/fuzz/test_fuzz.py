"""A short run of the fuzzer, and a proof that it detects wrong outcomes; `make fuzz` runs it for an hour."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dpaudit.errors import InputError
from tests.fuzz import outcome as outcomes
from tests.fuzz.__main__ import SHARES, cases
from tests.fuzz.arguments import Arguments, good_calls
from tests.fuzz.calls import Calls
from tests.fuzz.outcome import End, command, outcome


@pytest.mark.filterwarnings("ignore")
def test_no_case_has_a_wrong_outcome(tmp_path: Path) -> None:
    result = list(itertools.islice(cases(2027, tmp_path), 150))
    assert [(name, description, end.text) for name, description, end in result if end.end.wrong] == []
    assert {name.partition(" ")[0] for name, _, _ in result} == {kind.__name__ for kind in SHARES}
    assert {end.end for _, _, end in result} == {End.ANSWERED, End.REFUSED}


FOUND = (2, 14, 16, 48, 52, 78, 95, 166, 185, 210, 304, 353, 363, 502, 805, 893, 1006, 1216, 1446, 1640, 1801, 2939)
"""Numbers of cases that once had a wrong outcome, such as dropped masks, dates and endless data."""


@pytest.mark.filterwarnings("ignore")
def test_earlier_wrong_outcomes_do_not_recur(tmp_path: Path) -> None:
    calls = Calls(tmp_path)
    result = [(number, *calls.case(random.Random(f"1 {number}"))) for number in FOUND]
    assert [(number, description, end.text) for number, description, end in result if end.end.wrong] == []


WITHOUT_A_RUN = {"log_to_mlflow", "log_to_wandb", "restore_sweep", "check"}
"""Functions whose arguments end in a refusal, because a run would take long."""


@pytest.mark.filterwarnings("ignore")
def test_good_arguments_are_answered(tmp_path: Path) -> None:
    """Otherwise cases with one odd argument would be refused because of another one."""
    ends = {name: outcome(partial(_answer, *call)).end for name, call in good_calls(tmp_path).items()}
    assert {name for name, end in ends.items() if end is not End.ANSWERED} == WITHOUT_A_RUN


def _answer(function: Callable[..., object], arguments: dict[str, object]) -> str:
    return str(function(**arguments))


@pytest.mark.filterwarnings("ignore")
def test_odd_arguments_are_refused_in_a_sentence(tmp_path: Path) -> None:
    arguments = Arguments(tmp_path)
    result = [arguments.case(random.Random(f"3 {number}")) for number in range(60)]
    assert [(description, end.text) for description, end in result if end.end.wrong] == []


def test_wrong_outcomes_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> str:
        raise InputError(text)

    def fail() -> str:
        raise ZeroDivisionError

    assert outcome(lambda: "yes").end is End.ANSWERED
    assert outcome(lambda: "yes", nonsense=True).end is End.NONSENSE
    assert outcome(lambda: refuse("a sentence")).end is End.REFUSED
    assert outcome(lambda: refuse("x" * 5000)).end is End.NO_SENTENCE
    assert outcome(fail).end is End.TRACEBACK
    with monkeypatch.context() as patch:
        patch.setattr(outcomes, "SLEPT_S", 0.1)
        assert outcome(lambda: str(threading.Event().wait())).end is End.HANG
    monkeypatch.setattr("dpaudit.engine.estimate.tables.SourceTable.of_file", lambda *_: fail())
    with monkeypatch.context() as patch:
        patch.setattr(outcomes, "LIMIT_S", 0.1)
        assert outcome(lambda: str([None for _ in iter(int, 1)])).end is End.HANG
    (tmp_path / "x.csv").touch()
    assert command(["estimate", str(tmp_path / "x.csv")]).end is End.TRACEBACK


def test_a_case_depends_on_its_number_only(tmp_path: Path) -> None:
    first, again = (list(itertools.islice(cases(7, tmp_path / name), 5)) for name in "ab")
    assert [name for name, _, _ in first] == [name for name, _, _ in again]
    assert random.Random("7 0").random() == random.Random("7 0").random()
