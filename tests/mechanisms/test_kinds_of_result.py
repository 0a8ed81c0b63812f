"""Kinds of results, each with two values that must not look alike, and what of a call is not read."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import logging
import os
import pickle
import queue
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from sklearn.neighbors import KernelDensity, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

from dpaudit.engine.answer.gather import differing_parts
from dpaudit.engine.games.outcomes import alike_note
from dpaudit.mechanisms.adapters.other_python.calls import OtherPython, call_in_process
from dpaudit.mechanisms.adapters.other_python.object_state import State, integer_parts
from dpaudit.mechanisms.adapters.other_python.worker import outcome_of, without_numbers
from dpaudit.mechanisms.queries.row_function import UNKNOWN, CallOutcome, is_unreadable
from tests.loops import Cases
from tests.nightly import by_day

HERE = str(Path(__file__).parent)
NOTHING = pa.table({"x": [0.0]})


def points(x: float) -> np.ndarray[Any, Any]:
    return np.array([[x], [0.0], [1.0], [2.0], [5.0]])


@dataclasses.dataclass
class Slots:
    __slots__ = ("_total", "name")
    name: str
    _total: float


class Named:
    """An object with one public constant."""

    def __init__(self, total: float) -> None:
        self.epsilon, self._total = 1.0, total


class Labelled(dict[str, float]):
    """An empty dict with an attribute."""

    def __init__(self, total: float) -> None:
        self.read = lambda: total


class Exporting:
    def __init__(self, total: float) -> None:
        self.name, self._read = "sum", memoryview(str(total).encode())

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def network(x: float) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
    torch.nn.init.constant_(model[0].weight, x)  # type: ignore[arg-type]
    torch.nn.init.zeros_(model[0].bias)  # type: ignore[arg-type]
    return model


def filled_queue(x: float) -> Any:
    filled: queue.Queue[float] = queue.Queue()
    filled.put(x)
    return filled


def saved(x: float) -> bytes:
    file = io.BytesIO()
    np.savez(file, total=np.full(20, x))
    return file.getvalue()


def booster(library: str, x: float) -> Any:
    package = pytest.importorskip(library)
    features = np.linspace(0, 1, 40)[:, None]
    if library == "xgboost":
        return package.train({"max_depth": 2}, package.DMatrix(features, features[:, 0] * x), 2)
    return package.LGBMRegressor(n_estimators=2, min_child_samples=1, verbose=-1).fit(features, features[:, 0] * x)


def picture(x: float) -> Any:
    return pytest.importorskip("PIL.Image").fromarray(np.full((3, 3), int(x), np.uint8))


def figure(x: float) -> Any:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(1, 1))
    drawing.add_axes((0, 0, 1, 1)).bar([0, 1], [x, 2])
    return drawing


KINDS: dict[str, Callable[[float], Any]] = {
    "network": network,
    "sparse tensor": lambda x: torch.tensor([x, 0]).to_sparse(),
    "neighbours": lambda x: KNeighborsRegressor(2).fit(points(x), points(0)[:, 0]),
    "density": lambda x: KernelDensity().fit(points(x)),
    "pipeline": lambda x: make_pipeline(StandardScaler(), SplineTransformer()).fit(points(x)),
    "xgboost": lambda x: booster("xgboost", x),
    "picture": picture,
    "constant": Named,
    "slots": lambda x: Slots("sum", x),
    "nested": lambda x: {"model": [Named(x)]},
    "attribute of a dict": Labelled,
    "export": Exporting,
    "closure inside": lambda x: {"models": collections.deque([functools.partial(print, Named(x))])},
    "queue": filled_queue,
    "buffer": lambda x: pa.py_buffer(str(x).encode()),
    "memoryview": lambda x: memoryview(np.array([x])).cast("B"),
    "styler": lambda x: pd.DataFrame({"a": [x]}).style,
    "saved": saved,
    "pickled": lambda x: pickle.dumps(Named(x)),
    "matrix": lambda x: np.asmatrix([[x]]),
    "generator": lambda x: np.random.default_rng(int(x)),
    "objects": lambda x: np.array([Named(x), None], object),
    "sparse": lambda x: scipy.sparse.csr_array([[x, 0]]),
    "zone": lambda x: datetime.datetime.fromtimestamp(x, datetime.UTC),
    "enum": lambda x: enum.Enum("Total", {"A": x}).A,  # type: ignore[attr-defined]
    "exception": lambda x: ValueError(Named, x),
    "integer": lambda x: 10**30 + int(x),
    "negative integer": lambda x: -(2**60) - int(x),
    "integers": lambda x: [2**53 + int(x), 1],
    "array of integers": lambda x: np.array([2**53 + int(x)]),
    "digits": lambda x: decimal.Decimal(f"1.{'0' * 30}{int(x)}"),
    "fraction": lambda x: fractions.Fraction(10**30 + int(x), 10**30),
}


SLOW_KINDS: dict[str, Callable[[float], Any]] = {
    "frozen network": lambda x: torch.jit.trace(network(x).eval(), torch.zeros(1, 1)),  # type: ignore[no-untyped-call]
    "optimizer": lambda x: torch.optim.SGD([torch.nn.Parameter(torch.tensor([x]))], lr=0.1),
    "lightgbm": lambda x: booster("lightgbm", x),
    "figure": figure,
}
"""Kinds whose libraries take seconds to import."""


def test_two_values_of_each_kind_do_not_look_alike() -> None:
    with Cases() as cases:
        for what, make in by_day(KINDS, by_night=KINDS | SLOW_KINDS).items():
            with cases.case(what):
                first, same, other = (outcome_of(make(x)) for x in (17.0, 17.0, 19.0))
                assert first.ending != same.ending or len(first.numbers) == len(same.numbers)
                assert (first.ending, first.numbers) != (other.ending, other.numbers), first.ending
                assert not is_unreadable(first.ending)
                assert np.isfinite(first.numbers).all()


def test_parts_of_integers() -> None:
    assert integer_parts(-(2**53)) == [-(2.0**53)]
    assert integer_parts(2**60 + 3) == [3, 0, 2**12, 0]
    assert integer_parts(-(2**60) - 1) == [2**24 - 1, 2**24 - 1, 2**24 - 2**12 - 1, 2**24 - 1]
    assert integer_parts(-(2**60)) == [-(2.0**60)], "double precision holds it"
    assert len(integer_parts(2**1024)) == 64


def test_digits_that_no_float_holds_are_low_bits() -> None:
    """In noise that was drawn as a float they tell what was added to it, as the low bits of a float do."""
    number = 0.1234567
    noise, exact = fractions.Fraction(number), fractions.Fraction(1, 3)
    with Cases() as cases:
        for what, first, second in (
            ("fraction", noise, noise + 1),
            ("not a float", exact, exact + 1),
            ("decimal", decimal.Decimal(number), decimal.Decimal(number) + 1),
            ("float as an integer", int(noise * 2**80), int(noise * 2**80) * 2),
            ("private", Named(noise), Named(noise + 1)),  # type: ignore[arg-type]
        ):
            with cases.case(what):
                results = outcome_of(first), outcome_of(second)
                assert results[0].ending == results[1].ending
                assert len(results[0].numbers) == len(results[1].numbers)
        results = outcome_of(noise + 1), outcome_of(fractions.Fraction(float(noise + 1)))
        heads = [result.numbers[: len(result.numbers) - result.low_bits] for result in results]
        assert heads[0] == heads[1]
        assert results[0].numbers != results[1].numbers


def test_a_state_has_a_fixed_number_of_numbers() -> None:
    """Its length may be random; what cannot be read is named, and pointers and locks are no content."""
    widths = {len(State([1.5] * count, without_numbers).padded(1_000)) for count in (1, 7, 16)}
    assert widths == {19}
    assert State([None, object()], without_numbers).padded(1_000) == []
    assert State([(each for each in [1])], without_numbers).numbers == [1]
    assert State(io.FileIO(os.devnull), without_numbers).unread == []
    assert State(sys._getframe(), without_numbers).unread == ["a frame object"]
    assert len(State(np.zeros(10**6), without_numbers).padded(100)) == 100


def test_a_network_is_read_by_its_weights_alone() -> None:
    """Hooks and caches do not leave with the weights; that they differ is noted."""
    plain, cached = network(1.0), network(1.0)
    cached._rows = torch.tensor([3.0])
    first, second = outcome_of(plain), outcome_of(cached)
    assert first.numbers == second.numbers
    assert first.unread != second.unread


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def called(function: Callable[[], Any]) -> CallOutcome:
    (outcome,) = call_in_process(lambda rows, rng: function(), NOTHING, [0], form="list")
    return outcome


def test_a_file_whose_path_is_returned_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    for make in (lambda text: written(path, text), lambda text: str(written(path, text))):
        first, second = (called(functools.partial(make, text)) for text in ("17.5", "18.5"))
        assert [first.numbers[0], second.numbers[0]] == [17.5, 18.5]
        assert first.ending == second.ending
    os.utime(path, (1, 1))
    assert " of a file" not in called(lambda: str(path)).ending, "it was not written by this call"


def test_what_is_printed_logged_and_written_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    side_effects: dict[str, Callable[[int], Any]] = {
        "printed": lambda x: print(x) or 3,
        "error": lambda x: sys.stderr.write(f"{x}") and 3,
        "logged": lambda x: logging.getLogger("a").info("%s", x) or logging.getLogger("a").warning("%s", x) or 3,
        "written": lambda x: written(tmp_path / "a.txt", str(x)) and 3,
        "compiled": lambda x: torch.save(torch.tensor([x]), "a.pt") is None,
    }
    with Cases() as cases:
        for what, act in side_effects.items():
            with cases.case(what):
                first, same, other = (called(functools.partial(act, x)) for x in (17, 17, 18))
                assert first.ending in ("int", "bool")
                assert first.unread == same.unread != other.unread
    assert "17" in capsys.readouterr().out, "it is printed as before"
    assert called(lambda: 3).unread == ()
    assert called(lambda: None).unread[0][1] == UNKNOWN


def test_another_python_sends_what_was_not_read() -> None:
    with OtherPython(sys.executable, "audited_functions:prints_its_sum", form="list", path=[HERE]) as python:
        first, same, other = (python.call(pa.table({"x": [x]}), [0])[0] for x in (1.0, 1.0, 2.0))
    assert first.ending == other.ending == "int"
    assert first.unread == same.unread != other.unread


def alike(*unread: tuple[tuple[str, str], ...], ending: str = "int") -> tuple[str, ...]:
    outcomes = [CallOutcome(ending, np.zeros(0), unread=each) for each in unread]
    return alike_note(outcomes)


def test_parts_that_differ_between_equal_results_are_named() -> None:
    first, second = (("text", "1"),), (("text", "2"),)
    assert differing_parts([alike(first, first), alike(first)]) == ()
    assert differing_parts([alike(first, second)]) == ("text",)
    assert differing_parts([alike(first), alike(second)]) == ("text",), "between units"
    assert differing_parts([alike(first, ())]) == differing_parts([alike(first), alike(())]) == ("text",)
    assert differing_parts([alike((("state", UNKNOWN),))]) == ("state",)
    assert differing_parts([alike(first), alike(first, ending="float")]) is None
    assert differing_parts([alike(first), ()]) is None
    assert differing_parts([]) is None
    assert alike_note([CallOutcome(word, np.zeros(0)) for word in "ab"]) == ()
