"""A count with Laplace noise, a share or a count with geometric noise, stored in a result of many kinds; all honest.

Each function adds noise once and stores the noisy number, or a step of it, in one kind of result. So each satisfies
the claim of epsilon 1, however much of the result is read.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import json
import logging
import math
import pickle
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass
class Record:
    """A dataclass with slots."""

    __slots__ = ("name", "total")
    name: str
    total: float


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A frozen dataclass with a private field."""

    _total: float
    unit: str = "people"


class Private:
    """An object with one public constant and a private number."""

    def __init__(self, total: float) -> None:
        self.epsilon, self._total = 1.0, total


class Hidden:
    """An object with private attributes only."""

    def __init__(self, total: float) -> None:
        self.__total = total


class Slotted:
    """An object with private slots."""

    __slots__ = ("__total",)

    def __init__(self, total: float) -> None:
        self.__total = total


class Opaque:
    """An object that can neither be pickled nor copied."""

    def __init__(self, total: float) -> None:
        self._read = lambda: total

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class Labelled(dict[str, float]):
    """A dict with a private attribute."""


class Release(Exception):
    """An exception that holds a number."""


def labelled(x: float) -> Labelled:
    result = Labelled(a=1.0)
    result._total = x  # type: ignore[attr-defined]
    return result


def module(x: float, layers: int = 1) -> Any:
    import torch

    network = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(layers)))
    for parameter in network.parameters():
        torch.nn.init.constant_(parameter, x)
    return network


def optimizer(x: float) -> Any:
    import torch

    return torch.optim.SGD([torch.nn.Parameter(torch.tensor([float(x)]))], lr=0.1)


def tensor(x: float, kind: str = "float32") -> Any:
    import torch

    return torch.tensor([x], dtype=getattr(torch, kind))


def sparse_tensor(x: float) -> Any:
    return tensor(x).to_sparse()


def points(x: float) -> Any:
    return np.array([[x], [0.0], [1.0], [2.0], [5.0]])


def neighbours(x: float) -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(2).fit(points(x), points(0)[:, 0])


def density(x: float) -> Any:
    from sklearn.neighbors import KernelDensity

    return KernelDensity().fit(points(x))


def pipeline(x: float) -> Any:
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LinearRegression()).fit(points(x), points(x)[:, 0])


def tree(x: float) -> Any:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(max_depth=2, random_state=0).fit(points(x), points(x)[:, 0])


def spline(x: float) -> Any:
    from scipy.interpolate import CubicSpline

    return CubicSpline([0, 1, 2], [0, x, 1])


def sparse_matrix(x: float) -> Any:
    import scipy.sparse

    return scipy.sparse.csr_array([[x, 0]])


def booster(x: float, library: str) -> Any:
    features = np.linspace(0, 1, 20)[:, None]
    if library == "xgboost":
        import xgboost

        return xgboost.train({"max_depth": 1, "nthread": 1}, xgboost.DMatrix(features, features[:, 0] * x), 1)
    import lightgbm

    data = lightgbm.Dataset(features, features[:, 0] * x, params={"verbose": -1, "min_data_in_leaf": 1})
    return lightgbm.train({"num_leaves": 2, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 1}, data, 1)


def picture(x: float) -> Any:
    from PIL import Image

    return Image.fromarray(np.full((3, 3), min(255, max(0, round(x))), np.uint8))


def picture_bytes(x: float) -> bytes:
    file = io.BytesIO()
    picture(x).save(file, "png")
    return file.getvalue()


def figure(x: float) -> Any:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(1, 1))
    drawing.add_artist(__import__("matplotlib.lines", fromlist=["Line2D"]).Line2D([0, x], [0, 1]))
    return drawing


def axes(x: float) -> Any:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(1, 1))
    return drawing.add_axes((0, 0, 1, 1)).plot([0, x])[0]


def graph(x: float) -> Any:
    import networkx

    result = networkx.Graph()
    result.add_edge("a", "b", weight=x)
    return result


def polars_frame(x: float) -> Any:
    import polars

    return polars.DataFrame({"n": [x]})


def polars_lazy(x: float) -> Any:
    return polars_frame(x).lazy()


def arrow_table(x: float) -> Any:
    import pyarrow

    return pyarrow.table({"n": [x]})


def arrow_buffer(x: float) -> Any:
    import pyarrow

    return pyarrow.py_buffer(f"{x}".encode())


def frame(x: float) -> Any:
    import pandas

    return pandas.DataFrame({"n": [x], "unit": ["people"]})


def series(x: float) -> Any:
    return frame(x)["n"]


def styler(x: float) -> Any:
    return frame(x).style


def written(x: float, path: Callable[[str], Any] = str, name: str = "release.txt") -> Any:
    Path(name).write_text(f"{x}\n", encoding="utf-8")
    return path(name)


def array_file(x: float) -> str:
    np.save("release.npy", np.array([x]))
    return "release.npy"


def weights_file(x: float) -> Path:
    import torch

    torch.save(tensor(x), "release.pt")
    return Path("release.pt")


def written_unsaid(x: float) -> bool:
    written(x)
    return True


def printed(x: float) -> None:
    print(x, file=io.StringIO())
    logging.getLogger("release").info("%s", x)


def raised(x: float) -> Any:
    raise Release(f"the count is {x}")


def closure(x: float) -> Any:
    return lambda: x


def bound_method(x: float) -> Any:
    return Private(x).__init__  # type: ignore[misc]


def generated(x: float) -> Any:
    yield x


async def awaitable(x: float) -> float:
    return x


def saved(x: float) -> bytes:
    file = io.BytesIO()
    np.savez(file, n=np.full(20, x))
    return file.getvalue()


def structured(x: float) -> Any:
    return np.array([("a", x)], [("name", "U1"), ("n", "f8")])


def masked(x: float) -> Any:
    return np.ma.array([x, 1.0], mask=[False, True])


OF_NUMBERS: Mapping[str, Callable[[float], Any]] = {
    "float": float,
    "text": lambda x: f"about {x} people",
    "complex": lambda x: complex(1, x),
    "float of NumPy": np.float64,
    "single precision": np.float32,
    "array": lambda x: np.array([x, 1.0]),
    "matrix": lambda x: np.asmatrix([[x]]),
    "structured array": structured,
    "masked array": masked,
    "array of objects": lambda x: np.array([Private(x), None], object),
    "array of Python": lambda x: array.array("d", [x]),
    "tuple": lambda x: (x, "people"),
    "named tuple": lambda x: collections.namedtuple("Total", "n")(x),
    "deque": lambda x: collections.deque([x]),
    "set": lambda x: {x},
    "nested dict": lambda x: {"a": {"b": [{"c": (x,)}]}},
    "dict with an attribute": labelled,
    "namespace": lambda x: types.SimpleNamespace(n=x),
    "dataclass with slots": lambda x: Record("n", x),
    "frozen dataclass": Frozen,
    "private attribute": Private,
    "hidden attribute": Hidden,
    "private slot": Slotted,
    "object that cannot be pickled": Opaque,
    "nested object": lambda x: {"models": [Private(x)]},
    "exception": lambda x: ValueError("n", x),
    "raised exception": raised,
    "partial": lambda x: functools.partial(print, x),
    "closure": closure,
    "closure in a list": lambda x: [closure(x)],
    "method": bound_method,
    "generator": generated,
    "coroutine": awaitable,
    "decimal": lambda x: decimal.Decimal(x),
    "rounded decimal": lambda x: decimal.Decimal(x) + 0,
    "fraction": fractions.Fraction,
    "private fraction": lambda x: Private(fractions.Fraction(x)),  # type: ignore[arg-type]
    "float as an integer": lambda x: int(math.ldexp(x, 80)),
    "time": lambda x: datetime.datetime.fromtimestamp(x, datetime.UTC),
    "duration": lambda x: datetime.timedelta(seconds=x),
    "JSON": lambda x: json.dumps({"n": x}),
    "pickle": lambda x: pickle.dumps(Private(x)),
    "bytes": lambda x: np.array([x]).tobytes(),
    "memoryview": lambda x: memoryview(np.array([x])).cast("B"),
    "file in memory": lambda x: io.BytesIO(f"{x}".encode()),
    "text in memory": lambda x: io.StringIO(f"{x}"),
    "file of arrays": saved,
    "name of a written file": written,
    "path of a written file": functools.partial(written, path=Path),
    "name of a written array": array_file,
    "path of written weights": weights_file,
    "written file, result True": written_unsaid,
    "printed text, result None": printed,
    "frame": frame,
    "series": series,
    "styler": styler,
    "arrow table": arrow_table,
    "arrow buffer": arrow_buffer,
    "polars frame": polars_frame,
    "lazy polars frame": polars_lazy,
    "networkx graph": graph,
    "sparse matrix": sparse_matrix,
    "spline": spline,
    "torch module": module,
    "torch module of two layers": functools.partial(module, layers=2),
    "dict with a torch module": lambda x: {"model": module(x), "epsilon": 1.0},
    "state of a torch module": lambda x: module(x).state_dict(),
    "torch tensor": tensor,
    "bfloat16 tensor": functools.partial(tensor, kind="bfloat16"),
    "sparse tensor": sparse_tensor,
    "torch optimizer": optimizer,
    "KNeighborsRegressor": neighbours,
    "KernelDensity": density,
    "scikit-learn pipeline": pipeline,
    "decision tree": tree,
    "LightGBM": functools.partial(booster, library="lightgbm"),
    "XGBoost": functools.partial(booster, library="xgboost"),
    "picture": picture,
    "PNG": picture_bytes,
    "matplotlib figure": figure,
    "matplotlib line": axes,
}
"""Kinds of result of a number with Laplace noise."""

OF_WHOLE_NUMBERS: Mapping[str, Callable[[int], Any]] = {
    "integer": int,
    "integer above 2^53": lambda n: 2**60 + n,
    "integer of 100 bits": lambda n: (1 << 100) + n,
    "large multiple": lambda n: n << 70,
    "array of large integers": lambda n: np.array([2**60 + n]),
    "list of integers": lambda n: [2**53 + n, 1],
    "whole decimal": lambda n: decimal.Decimal(f"1.{'0' * 30}") + n,
    "fraction of whole numbers": lambda n: fractions.Fraction(10**30 + n, 10**30),
    "enum": lambda n: enum.Enum("Total", {"A": n}).A,  # type: ignore[attr-defined]
    "random state": lambda n: np.random.default_rng(abs(n)),
    "range": range,
    "characters": lambda n: "x" * max(0, n),
    "empty bytes": lambda n: bytes(max(0, n)),
    "whole numbers, private": Private,
    "digits": lambda n: f"{n:+d}",
    "bits": lambda n: [bool(max(0, n) >> bit & 1) for bit in range(6)],
}
"""Kinds of result of a number with geometric noise."""

OF_ANSWERS: Mapping[str, Callable[[bool], Any]] = {
    "bool": bool,
    "word": lambda yes: "yes" if yes else "no",
    "1 or None": lambda yes: 1 if yes else None,
    "None or a dict": lambda yes: None if yes else {},
    "bool of NumPy": np.bool_,
    "class": lambda yes: Private if yes else Hidden,
    "exception or a number": lambda yes: 1 if yes else raised(1.0),
    "empty or not": lambda yes: [Private(1.0)] * yes,
}
"""Kinds of result of a noisy comparison."""


def with_laplace_noise(make: Callable[[float], Any]) -> Callable[..., Any]:
    def count(rows: Any, rng: Any) -> Any:
        return make(len(rows) + float(rng.laplace(0, 1)))

    return count


def exact_sum(rows: Any, rng: Any) -> Any:
    return len(rows) + fractions.Fraction(float(rng.laplace(0, 1)))


def exact_decimal_sum(rows: Any, rng: Any) -> Any:
    return len(rows) + decimal.Decimal(float(rng.laplace(0, 1)))


def with_geometric_noise(make: Callable[[int], Any]) -> Callable[..., Any]:
    def count(rows: Any, rng: Any) -> Any:
        p = 1 - math.exp(-1)
        return make(int(len(rows) + rng.geometric(p) - rng.geometric(p)))

    return count


def compared(make: Callable[[bool], Any]) -> Callable[..., Any]:
    def many(rows: Any, rng: Any) -> Any:
        return make(bool(len(rows) + rng.laplace(0, 1) > 5))

    return many


RESULTS: Mapping[str, Callable[..., Any]] = {
    **{what: with_laplace_noise(make) for what, make in OF_NUMBERS.items()},
    **{what: with_geometric_noise(make) for what, make in OF_WHOLE_NUMBERS.items()},
    **{what: compared(make) for what, make in OF_ANSWERS.items()},
    "exact sum as a fraction": exact_sum,
    "exact sum as a decimal": exact_decimal_sum,
}
"""Functions `f(rows, rng)` by the kind of their result."""
