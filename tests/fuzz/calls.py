"""Cases for the functions of `import dpaudit`, called with values that Python callers may have."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.utils import Bunch

import dpaudit
from dpaudit.claims import GaussianDP
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.request.sweep import Rungs, SubjectTo
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from tests.fuzz.odd_values import ANY, SAME, WRONG, Frame, Odd, anything, column, number, other_index
from tests.fuzz.outcome import End, Outcome, outcome

SCORES = [0.5, -1.25, 2.0, 0.125, 3.5, -0.5, 1.0, 0.0, 2.5, -2.0, 4.0, 0.75]
MEMBERS = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
SPEC: dict[str, Any] = {
    "name": "fuzz",
    "data": {"name": "gaussian-mixture", "rows": 40},
    "mechanism": {"name": "randomized-response", "epsilon": 1.0},
    "proxy": "true-posterior",
    "game": {"name": "label-canaries", "replays": 1},
    "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
    "run": {"runner": "in-process", "figures": False},
}
FRAME = pd.DataFrame(
    {"age": [31.0, 20.0, 50.0, 42.0], "city": ["Bern", "Oslo", "Rome", "Bern"], "clicked": [1, 0, 0, 1]}
)


class _Planned(BaseException):
    """Raised where a run would start: all arguments were accepted."""


def _planned(event: object) -> NoReturn:
    raise _Planned


@dataclass(frozen=True)
class Case:
    """A call.

    Attributes:
        words: Description of the call.
        call: Function that returns the answer as text.
        means: SAME if the answer of `good` is right, WRONG if none is, ANY if any is.
        good: The call without odd values.
    """

    words: str
    call: Callable[[], str]
    means: str
    good: Callable[[], str]


@dataclass(frozen=True)
class Calls:
    """Cases that call public functions with one to three odd arguments."""

    folder: Path

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        (make,) = rng.choices(list(_SHARES), list(_SHARES.values()))
        case = make(rng, self.folder / "run")
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        result = outcome(case.call, nonsense=case.means == WRONG)
        if case.means == SAME:
            good = outcome(case.good)
            if (result.end, result.text) != (good.end, good.text):
                end = result.end if result.end.wrong else End.NONSENSE
                result = Outcome(end, f"{result.text}\ninstead of\n{good.text}")
        return case.words, result


def _case(name: str, function: Callable[..., Any], good: Mapping[str, Any], odd: Mapping[str, Odd]) -> Case:
    """Return a call by keyword with odd values in place of good ones."""
    means = {odd_value.means for odd_value in odd.values()}
    values = {**good, **{argument: odd_value.value for argument, odd_value in odd.items()}}
    words = ", ".join(f"{argument} = {odd_value.words} ({odd_value.means})" for argument, odd_value in odd.items())
    return Case(
        f"{name}: {words}",
        lambda: str(function(**values)),
        WRONG if WRONG in means else ANY if ANY in means else SAME,
        lambda: str(function(**good)),
    )


def _some(names: list[str], rng: random.Random) -> list[str]:
    return rng.sample(names, min(len(names), rng.choices((1, 2, 3), (6, 2, 1))[0]))


def _estimate(rng: random.Random, folder: Path) -> Case:
    """Cases of scores and members."""
    good: dict[str, Any] = {"scores": SCORES, "members": MEMBERS, "delta": 0.0, "confidence": 0.875}
    changes: dict[str, Callable[[], Odd]] = {
        "scores": lambda: column(SCORES, rng),
        "members": lambda: column(MEMBERS, rng),
        "delta": lambda: number(0.0, rng),
        "confidence": lambda: number(0.875, rng),
        "claim": lambda: _instead(rng, number(0.5, rng), "1", None),
        **{name: partial(anything, rng) for name in _OTHERS},
    }
    names = rng.sample(["scores", "members"], rng.randint(1, 2)) if rng.random() < 0.7 else _some(list(changes), rng)
    if "claim" in names:
        good["claim"] = 0.5
    return _case("estimate", dpaudit.estimate, good, {name: changes[name]() for name in names})


_OTHERS = ("method", "selection", "groups", "group_score", "replays", "ordered", "guess", "in_scores")


def _instead(rng: random.Random, odd: Odd, *others: Any) -> Odd:
    if isinstance(odd.value, str) and odd.value in others:
        odd = Odd(odd.words, odd.value, ANY)
    return odd if rng.random() < 0.8 else Odd(f"{others[0]!r}", others[0], ANY)


def _separate_files(rng: random.Random, folder: Path) -> Case:
    """Cases of separate scores of members and others."""
    good = {"in_scores": SCORES[::2], "out_scores": SCORES[1::2]}
    odd = {name: column(good[name], rng) for name in _some(list(good), rng)}
    odd = {
        name: Odd(odd_value.words, odd_value.value, ANY) if "one " in odd_value.words else odd_value
        for name, odd_value in odd.items()
    }
    return _case("estimate", dpaudit.estimate, good, odd)


def _indices(rng: random.Random, folder: Path) -> Case:
    """Cases of two Series, with one index or two."""
    index, rows = other_index(len(SCORES), rng), len(SCORES)
    score, member = pd.Series(SCORES, index=index), pd.Series(MEMBERS, index=index)
    alone = pd.Series(MEMBERS)
    good: dict[str, Any] = {"scores": SCORES, "members": MEMBERS}
    odd = rng.choice(
        (
            {"scores": Odd("its index", score, SAME), "members": Odd("the same", member, SAME)},
            {"scores": Odd("its index", score, WRONG), "members": Odd("another", alone, WRONG)},
            {"scores": Odd("its index", score, SAME)},
            {"scores": Odd("table", {"score": score, "member": member}, SAME), "members": Odd("none", None, SAME)},
            {"scores": Odd("table", {"score": score, "member": alone}, WRONG), "members": Odd("none", None, SAME)},
            {"scores": Odd("its index", score, WRONG), "groups": Odd("another", pd.Series(range(rows)), WRONG)},
        )
    )
    return _case("estimate", dpaudit.estimate, good, odd)


def _tables(rng: random.Random, folder: Path) -> Case:
    """Cases of a table of scores or counts."""
    good: dict[str, list[float]] = {"score": SCORES, "member": MEMBERS}
    if rng.random() < 0.2:
        good = {"tp": [65.0], "fp": [25.0], "tn": [75.0], "fn": [35.0]}
    names = rng.sample(list(good), 1) if rng.random() < 0.8 else []
    odd = {name: column(good[name], rng) for name in names}
    table = {**good, **{name: odd_value.value for name, odd_value in odd.items()}}
    means = next((odd_value.means for odd_value in odd.values()), SAME)
    words = ", ".join(f"{name}: {odd_value.words}" for name, odd_value in odd.items())
    if len(good) > 2 and means == SAME:
        means = ANY  # a single number is not always a column
    if odd and any(odd_value.words in ("one short", "one more") for odd_value in odd.values()) and len(good) > 2:
        means = ANY
    shapes: list[Callable[[], Odd]] = [
        lambda: Odd(f"mapping, {words}", table, ANY if "0-d" in words and len(good) > 2 else means),
        lambda: anything(rng),
        lambda: Odd("mapping of odd keys", {None: SCORES, **good}, ANY),
        lambda: Odd("mapping of surrogates", {"\ud800": good[next(iter(good))], **good}, WRONG),
        lambda: Odd("frame", _other_frame(pd.DataFrame(good), rng), SAME),
        lambda: Odd("twice named", pd.DataFrame(np.array([SCORES, SCORES, MEMBERS]).T, columns=[*_TWICE]), WRONG),
        lambda: Odd("two levels", pd.DataFrame(np.array([SCORES, MEMBERS]).T, columns=_LEVELS), ANY),
        lambda: Odd("sparse frame", pd.DataFrame(good).astype(pd.SparseDtype(float, 0.0)), SAME),
        lambda: Odd("sparse frame, filled by 1", pd.DataFrame(good).astype(pd.SparseDtype(float, 1.0)), SAME),
        lambda: Odd(
            "time zones", pd.DataFrame(good).assign(**{list(good)[-1]: pd.Timestamp("2020-01-01", tz="UTC")}), WRONG
        ),
        lambda: Odd("complex frame", pd.DataFrame(good).astype(complex) * 1j, WRONG),
        lambda: Odd("Arrow", pa.table(good), SAME),
        lambda: Odd("duck", Frame(pa.table(good)), SAME),
        lambda: Odd("batch", pa.record_batch(good), SAME),
    ]
    (shape,) = rng.choices(shapes, (14, *[1] * (len(shapes) - 1)))
    return _case("estimate", dpaudit.estimate, {"scores": good}, {"scores": shape()})


_TWICE = ("score", "score", "member")
_LEVELS = pd.MultiIndex.from_tuples([("score", ""), ("member", "")])


def _other_frame(frame: pd.DataFrame, rng: random.Random) -> Any:
    match rng.randrange(5):
        case 0:
            return frame.iloc[::-1][::-1]
        case 1:
            return frame.convert_dtypes()
        case 2:
            return frame.set_axis(other_index(len(frame), rng))
        case 3:
            return frame.convert_dtypes(dtype_backend="pyarrow")
        case _:
            return pd.DataFrame(np.asfortranarray(frame.to_numpy()), columns=list(frame.columns))


def _rows(**arguments: Any) -> str:
    examples = dpaudit.table(**arguments).load()
    return f"{examples.features} {examples.labels} {examples.class_names} {examples.categorical}"


def _table(rng: random.Random, folder: Path) -> Case:
    """Cases of `dpaudit.table` with a data frame."""
    good: dict[str, Any] = {"rows": FRAME, "label": "clicked"}
    changes: dict[str, Callable[[], Odd]] = {
        "rows": lambda: _frame(rng),
        "label": lambda: anything(rng, WRONG),
        "categorical": lambda: rng.choice([anything(rng), Odd("a tuple", ("age",), ANY), Odd("a word", "age", ANY)]),
        "drop": lambda: rng.choice([anything(rng), Odd("an array", np.array(["age"]), ANY), Odd("city", "city", ANY)]),
        "name": lambda: anything(rng),
    }
    names = ["rows"] if rng.random() < 0.5 else _some(list(changes), rng)
    return _case("table", _rows, good, {name: changes[name]() for name in names})


def _frame(rng: random.Random) -> Odd:
    age = FRAME["age"].tolist()
    odd = column(age, rng)
    forms: list[Callable[[], Odd]] = [
        lambda: anything(rng),
        lambda: Odd("another index", FRAME.set_axis(other_index(4, rng)), SAME),
        lambda: Odd("Arrow", pa.table(FRAME), SAME),
        lambda: Odd("duck", Frame(pa.table(FRAME)), SAME),
        lambda: Odd("batch", pa.RecordBatch.from_pandas(FRAME), SAME),
        lambda: Odd("nullable", FRAME.convert_dtypes(), SAME),
        lambda: Odd("of Arrow", FRAME.convert_dtypes(dtype_backend="pyarrow"), SAME),
        lambda: Odd("sparse", FRAME.assign(age=pd.arrays.SparseArray(age, fill_value=31.0)), SAME),
        lambda: Odd("categories", FRAME.assign(city=FRAME["city"].astype("category")), SAME),
        lambda: Odd("view", FRAME[["clicked", "city", "age"]][["age", "city", "clicked"]], SAME),
        lambda: Odd("twice named", FRAME.set_axis(["age", "age", "clicked"], axis=1), WRONG),
        lambda: Odd("1 and '1'", FRAME.set_axis([1, "1", "clicked"], axis=1), WRONG),
        lambda: Odd("levels", FRAME.set_axis(pd.MultiIndex.from_product([["a"], FRAME.columns]), axis=1), ANY),
        lambda: Odd(
            "surrogate name", FRAME.set_axis(pd.Index(["\ud800", "city", "clicked"], dtype=object), axis=1), WRONG
        ),
        lambda: Odd("surrogate city", FRAME.assign(city=pd.Series(["\ud800", "b", "c", "d"], dtype=object)), WRONG),
        lambda: Odd("dates", FRAME.assign(age=pd.date_range("2020-01-01", periods=4, tz="UTC")), WRONG),
        lambda: Odd("date labels", FRAME.assign(clicked=pd.date_range("2020-01-01", periods=4)), WRONG),
        lambda: Odd("complex", FRAME.assign(age=FRAME["age"] + 1j), WRONG),
        lambda: Odd("intervals", FRAME.assign(age=pd.interval_range(0, periods=4)), WRONG),
        lambda: Odd("lists", FRAME.assign(age=[[1], [2], [3], [4]]), WRONG),
        lambda: Odd("bytes", FRAME.assign(city=[b"a", b"b", b"c", b"d"]), WRONG),
        lambda: Odd("mixed", FRAME.assign(city=["a", 1, 2.0, None]), WRONG),
        lambda: Odd("objects", FRAME.assign(city=[object()] * 4), WRONG),
        lambda: Odd("10**400", FRAME.assign(age=[10**400, 1, 2, 3]), WRONG),
        lambda: Odd("missing labels", FRAME.assign(clicked=[1, None, 0, 1]), WRONG),
        lambda: Odd("sparse labels", FRAME.assign(clicked=pd.arrays.SparseArray([1, 0, 0, 1])), SAME),
        lambda: Odd("boolean labels", FRAME.assign(clicked=pd.array([True, False, False, True], "boolean")), ANY),
        lambda: Odd("one short", FRAME[:0], WRONG),
        lambda: Odd("mapping", {name: FRAME[name].tolist() for name in FRAME}, ANY),
        lambda: Odd("nested Arrow", pa.table({"a": [[1], [2]], "clicked": [0, 1]}), WRONG),
        lambda: Odd("null Arrow", pa.table({"a": pa.nulls(2), "clicked": [0, 1]}), WRONG),
        lambda: Odd("twice Arrow", pa.Table.from_arrays([pa.array([1, 2])] * 2, names=["a", "a"]), WRONG),
        lambda: Odd(f"age: {odd.words}", _assigned(odd.value), ANY if odd.means != SAME else SAME),
    ]
    return rng.choice(forms)()


def _assigned(value: Any) -> Any:
    """Return the frame with another first column if pandas accepts it."""
    try:
        table = FRAME.assign(age=value)
    except Exception:
        return FRAME
    return table if table["age"].dtype != object or not callable(value) else FRAME


def _examples(data: Any) -> str:
    spec = dpaudit.AuditSpec((dpaudit.Audit(RandomizedResponse(1.0), data, SPEC["game"]),))
    examples = spec.audits[0].data.load()
    return f"{examples.features} {examples.labels} {examples.class_names} {examples.categorical}"


def _pairs(rng: random.Random, folder: Path) -> Case:
    """Cases of (X, y) pairs and bunches."""
    features, labels = np.array([SCORES, MEMBERS]).T, MEMBERS
    odd = _labels(rng) if rng.random() < 0.5 else None
    matrix = _matrix(features, rng) if odd is None or rng.random() < 0.3 else Odd("X", features, SAME)
    label = odd or Odd("y", labels, SAME)
    means = WRONG if WRONG in (matrix.means, label.means) else ANY if ANY in (matrix.means, label.means) else SAME
    if isinstance(matrix.value, pd.DataFrame) and isinstance(label.value, pd.Series) and means == SAME:
        means = SAME if matrix.value.index.equals(label.value.index) else WRONG
    pair: Any = (matrix.value, label.value)
    if rng.random() < 0.2:
        names = rng.choice([Odd("none", None, SAME), anything(rng)])
        pair, means = (
            Bunch(data=pair[0], target=pair[1], target_names=names.value),
            ANY if names.means == ANY else means,
        )
    if rng.random() < 0.1:
        whole = anything(rng)
        pair, means = rng.choice([whole.value, (whole.value, labels), (*pair, 1)]), ANY
    pair_value = Odd(f"X {matrix.words}, y {label.words}", pair, means)
    return _case("Audit", _examples, {"data": (features, labels)}, {"data": pair_value})


def _labels(rng: random.Random) -> Odd:
    odd = column(MEMBERS, rng)
    named = odd.means == SAME and "bool" in odd.words  # classes False and True
    fine = odd.words in ("words", "inf") or odd.means == ANY
    return Odd(odd.words, odd.value, ANY if named or fine or odd.words == "complex Series" else odd.means)


def _matrix(good: Any, rng: random.Random) -> Odd:
    hidden = np.zeros(good.shape, dtype=bool)
    hidden[rng.randrange(len(good)), 0] = True
    forms: list[Callable[[], Odd]] = [
        lambda: anything(rng),
        lambda: Odd("lists", good.tolist(), SAME),
        lambda: Odd("float32", good.astype(np.float32), SAME),
        lambda: Odd("big-endian", good.astype(">f8"), SAME),
        lambda: Odd("Fortran", np.asfortranarray(good), SAME),
        lambda: Odd("objects", good.astype(object), SAME),
        lambda: Odd("frame", pd.DataFrame(good), SAME),
        lambda: Odd("frame of another index", pd.DataFrame(good, index=other_index(len(good), rng)), SAME),
        lambda: Odd("sparse frame", pd.DataFrame(good).astype(pd.SparseDtype(float, 0.5)), SAME),
        lambda: Odd("Arrow", pa.table({"a": good[:, 0], "b": good[:, 1]}), SAME),
        lambda: Odd("duck", Frame(pa.table({"a": good[:, 0], "b": good[:, 1]})), SAME),
        lambda: Odd("tensor", torch.tensor(good), SAME),
        lambda: Odd("masked nowhere", np.ma.array(good, mask=False), SAME),
        lambda: Odd("masked", np.ma.array(good, mask=hidden), ANY),
        lambda: Odd("masked throughout", np.ma.array(good, mask=True), WRONG),
        lambda: Odd("complex", good + 1j * hidden, WRONG),
        lambda: Odd("complex objects", (good + 1j * hidden).astype(object), WRONG),
        lambda: Odd("complex frame", pd.DataFrame(good + 1j * hidden), WRONG),
        lambda: Odd("datetime64", good.astype("datetime64[s]"), WRONG),
        lambda: Odd("timedelta64", good.astype("timedelta64[s]"), WRONG),
        lambda: Odd("words", np.full(good.shape, "word"), WRONG),
        lambda: Odd("voids", np.zeros(good.shape, "V3"), WRONG),
        lambda: Odd("structured", np.zeros(len(good), [("a", "f8"), ("b", "f8")]), WRONG),
        lambda: Odd("10**400", [[10**400, 1], *good.tolist()[1:]], WRONG),
        lambda: Odd("inf", np.where(hidden, np.inf, good), WRONG),
        lambda: Odd("ragged", [[1.0], *good.tolist()[1:]], WRONG),
        lambda: Odd("one row less", good[:-1], WRONG),
        lambda: Odd("dates", [["2020-01-01", "x"]] * len(good), WRONG),
        lambda: Odd("meta tensor", torch.empty(good.shape, device="meta"), WRONG),
        lambda: Odd("sparse tensor", torch.tensor(good).to_sparse(), WRONG),
        lambda: Odd("column", good[:, 0], WRONG),
        lambda: Odd("digits", good.astype(str), ANY),
        lambda: Odd("NaN", np.where(hidden, np.nan, good), ANY),
    ]
    return rng.choice(forms)()


def _values(rng: random.Random, folder: Path) -> Case:
    """Cases of public classes created with odd fields."""
    name, function, good, sure = rng.choice(_CLASSES)
    odd = {
        odd_value: _for(good[odd_value], rng) if odd_value in sure else anything(rng)
        for odd_value in _some(list(good), rng)
    }
    return _case(name, function, good, odd)


def _for(value: Any, rng: random.Random) -> Odd:
    """Return an odd value in place of a number, or of a value without an odd counterpart."""
    return number(value, rng) if isinstance(value, float) else anything(rng, WRONG)


def _description(value: Any) -> str:
    return (
        f"{value!s} {dpaudit.AuditSpec((dpaudit.Audit(RandomizedResponse(1.0), 'iris', SPEC['game'], claim=value),))}"
    )


_EXAMPLES = {"features": np.zeros((4, 2), np.float32), "labels": np.array([0, 1, 1, 0]), "classes": 2, "name": "x"}
_CLASSES: tuple[tuple[str, Callable[..., Any], dict[str, Any], set[str]], ...] = (
    ("Claim", dpaudit.Claim, {"epsilon": 1.0, "delta": 0.0, "relation": "label", "curve": None}, {"epsilon", "delta"}),
    ("Claim.of", dpaudit.Claim.of, {"curve": GaussianDP(1.0), "relation": "add-remove", "delta": 0.125}, {"delta"}),
    (
        "RunOptions",
        dpaudit.RunOptions,
        {
            "runner": "ray",
            "workers": None,
            "resources": dpaudit.ResourceRequest(),
            "address": None,
            "keep_scores": True,
            "figures": True,
            "time_limit_s": 1.0,
            "repeats": 2,
        },
        {"time_limit_s"},
    ),
    (
        "ResourceRequest",
        dpaudit.ResourceRequest,
        {"cpus": 1, "gpus": 0.5, "memory": "8GB", "custom": {"made_up_gpu": 0.5}},
        {"gpus"},
    ),
    (
        "Partition",
        Partition,
        {"target": 0.5, "reference": 0.25, "test": 0.25, "validation": 0.0, "order": "given"},
        {"target"},
    ),
    ("SubjectTo", SubjectTo, {"epsilon": 1.0, "audited_epsilon": 0.5}, {"epsilon", "audited_epsilon"}),
    ("Rungs", Rungs, {"field": "x", "values": (1, 2), "reduction_factor": 3.0}, {"reduction_factor"}),
    (
        "Examples",
        lambda **fields: dpaudit.Examples(**fields).digest,
        {**_EXAMPLES, "categorical": (), "class_names": ("a", "b")},
        set(),
    ),
    (
        "AuditSpec",
        lambda **fields: dpaudit.AuditSpec(**fields).to_yaml(),
        {
            "audits": (dpaudit.Audit(RandomizedResponse(1.0), "iris", SPEC["game"]),),
            "name": "x",
            "seed": 0,
            "confidence": 0.875,
            "run": dpaudit.RunOptions(),
            "together": None,
            "sweep": None,
        },
        {"confidence", "run"},
    ),
    (
        "Audit",
        lambda **fields: dpaudit.AuditSpec((dpaudit.Audit(**fields),)).to_yaml(),
        {
            "mechanism": RandomizedResponse(1.0),
            "data": "iris",
            "game": "label-inference",
            "proxy": "model",
            "attack": None,
            "estimator": None,
            "split": Partition(),
            "claim": None,
            "confirm": False,
            "stop": None,
            "name": "audit",
        },
        {"split"},
    ),
)


def _adapters(rng: random.Random, folder: Path) -> Case:
    """Cases of `from_...` with user code."""
    claim = dpaudit.Claim(1.0)
    calls: tuple[tuple[Callable[..., Any], dict[str, Any], list[str]], ...] = (
        (dpaudit.from_callable, {"train": _train, "claim": claim}, ["claim"]),
        (dpaudit.from_summary, {"train": _train, "claim": claim}, ["claim"]),
        (dpaudit.from_sklearn, {"estimator": LogisticRegression(), "claim": claim, "categories": "auto"}, ["claim"]),
        (dpaudit.from_torch, {"module": _module, "train": _loop, "claim": claim}, ["claim"]),
        (dpaudit.from_predictor, {"predictor": _Predictor, "claim": claim, "sigma": None}, ["claim"]),
        (
            dpaudit.from_steps,
            {
                "train": _steps,
                "noise_multiplier": 1.0,
                "steps": 3,
                "clip": 1.0,
                "delta": 0.125,
                "sample_rate": 0.5,
                "divisor": 1.0,
            },
            [],
        ),
        (dpaudit.from_opacus, {"train": _train, "engine": None, "delta": 0.125, "epsilon": 1.0}, []),
    )
    function, good, sure = rng.choice(calls)
    odd = {
        name: _for(good[name], rng) if isinstance(good[name], float) else anything(rng) for name in _some([*good], rng)
    }
    odd = {
        name: Odd(odd_value.words, odd_value.value, WRONG) if _surely(name, sure, odd_value) else odd_value
        for name, odd_value in odd.items()
    }

    def call(**arguments: Any) -> str:
        return repr(function(**arguments))

    return _case(function.__name__, call, good, odd)


def _surely(name: str, sure: list[str], odd: Odd) -> bool:
    return name in sure and odd.value is not None


def _train(X: Any, y: Any, seed: int) -> Any:
    return None


def _loop(module: Any, X: Any, y: Any, seed: int) -> Any:
    return None


def _steps(X: Any, y: Any, seed: int, canary: Any) -> Any:
    return None


def _module() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


class _Predictor:
    def answer(self, query: Any, data: Any, rng: Any) -> int:
        return 0


def _until_planned(function: Callable[..., Any], **arguments: Any) -> str:
    """Call a function that would run for long; return an answer when its run would start."""
    listeners = arguments.pop("listeners", [_planned])
    try:
        return str(function(**arguments, listeners=listeners))
    except _Planned:
        return "planned"


def _runs(rng: random.Random, folder: Path) -> Case:
    """Cases of `audit`, `check` and `sweep` up to the start of the first unit."""
    run = dpaudit.RunOptions("in-process", figures=False)
    about: dict[str, Any] = {"output": folder, "seed": 0, "quiet": True}
    calls: tuple[tuple[Callable[..., Any], dict[str, Any], set[str]], ...] = (
        (dpaudit.audit, {"spec": SPEC, **about}, {"listeners", "quiet"}),
        (
            dpaudit.check,
            {
                "mechanism": RandomizedResponse(1.0),
                "data": "iris",
                "claim": dpaudit.Claim(1.0),
                "split": Partition(),
                "budget": "10 trainings",
                "confidence": 0.875,
                "name": "x",
                "run": run,
                **about,
            },
            {"listeners", "quiet", "budget", "confidence"},
        ),
        (
            dpaudit.sweep,
            {
                "spec": SPEC,
                "space": {"mechanism.epsilon": [1.0, 2.0]},
                "maximise": "accuracy",
                "minimise": None,
                "subject_to": {"epsilon": 2.0},
                "rungs": None,
                "reaudit": False,
                "tune_config": None,
                **about,
            },
            {"listeners", "quiet", "reaudit"},
        ),
    )
    function, good, wrong = rng.choice(calls)
    odd: dict[str, Odd] = {}
    for name in _some([*good, "listeners"], rng):
        odd[name] = _for(good.get(name), rng) if name in wrong else _argument(name, good.get(name), rng)
        if name in ("listeners", "quiet", "reaudit") and odd[name].words in _HARMLESS:
            odd[name] = Odd(odd[name].words, odd[name].value, ANY)
    return _case(function.__name__, partial(_until_planned, function), good, _kept_inside(odd, folder))


_HARMLESS = ("True", "False", "np.bool", "()", "[]", "frozenset", "{}")


def _kept_inside(odd: Mapping[str, Odd], folder: Path) -> dict[str, Odd]:
    """Return `odd` without names of folders outside the fuzzer's folder."""
    own_values = {name: odd_value for name, odd_value in odd.items() if name != "output"}
    output = odd.get("output")
    if output is not None and isinstance(output.value, str | bytes | Path) and output.value:
        path = output.value.decode("latin-1") if isinstance(output.value, bytes) else str(output.value)
        own_values["output"] = Odd(
            output.words,
            type(output.value)(f"{folder}/{path}") if not isinstance(output.value, bytes) else output.value,
            output.means,
        )  # type: ignore[arg-type]
    elif output is not None and output.value is not None:
        own_values["output"] = output
    return own_values


def _argument(name: str, good: Any, rng: random.Random) -> Odd:
    if name == "spec" and rng.random() < 0.6:
        return Odd("changed spec", _changed(SPEC, rng), ANY)
    if name == "space" and rng.random() < 0.7:
        odd_value = anything(rng)
        makers: list[Any] = [
            {"mechanism.epsilon": odd_value.value},
            {"mechanism.epsilon": [odd_value.value, 1.0]},
            {"game": odd_value.value},
        ]
        return Odd(f"space of {odd_value.words}", rng.choice(makers), ANY)
    if name in ("subject_to", "rungs") and rng.random() < 0.7:
        odd_value = anything(rng)
        fields = ["epsilon", "audited_epsilon"] if name == "subject_to" else ["field", "values", "reduction_factor"]
        whole = {"epsilon": 1.0} if name == "subject_to" else {"field": "mechanism.epsilon", "values": [1.0, 2.0]}
        return Odd(f"{name} of {odd_value.words}", {**whole, rng.choice(fields): odd_value.value}, ANY)
    return anything(rng)


def _changed(value: Any, rng: random.Random) -> Any:
    """Return the mapping with an odd value at some place."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        return {**value, key: _changed(value[key], rng)}
    odd = anything(rng)
    return odd.value


def _loaded(rng: random.Random, folder: Path) -> Case:
    """Cases of `load_spec` and `restore_sweep`."""
    good: dict[str, Any] = {"source": SPEC}
    if rng.random() < 0.2:
        odd = {"folder": anything(rng, WRONG), "allow_code": anything(rng)}
        return _case("restore_sweep", partial(_until_planned, dpaudit.restore_sweep), {"folder": folder}, odd)
    spec = Odd("changed spec", _changed(SPEC, rng), ANY) if rng.random() < 0.8 else anything(rng, WRONG)

    def loaded(source: Any) -> str:
        return dpaudit.load_spec(source).to_yaml()

    return _case("load_spec", loaded, good, {"source": spec})


def _whole(rng: random.Random, folder: Path) -> Case:
    """Cases of a complete audit in a separate folder."""
    labels = MEMBERS * 4
    odd = column(labels, rng) if rng.random() < 0.7 else Odd("y", labels, SAME)
    spec = {**SPEC, "proxy": "model", "split": {"target": 0.5, "reference": 0.25, "test": 0.25}}
    features = np.array([SCORES * 4, labels]).T

    def run(labels: Any) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        report = dpaudit.audit({**spec, "data": (features, labels)}, output=folder, quiet=True)
        return str([(result.finding.lower, result.verdict) for result in report.results])

    named = odd.means == SAME and "bool" not in odd.words
    odd = odd if named or (odd.means == WRONG and odd.words != "words") else Odd(odd.words, odd.value, ANY)
    return _case("whole audit", run, {"labels": labels}, {"labels": odd})


_SHARES: dict[Callable[[random.Random, Path], Case], int] = {
    _estimate: 25,
    _separate_files: 8,
    _indices: 5,
    _tables: 14,
    _table: 14,
    _pairs: 12,
    _values: 12,
    _adapters: 6,
    _runs: 8,
    _loaded: 6,
    _whole: 1,
}
