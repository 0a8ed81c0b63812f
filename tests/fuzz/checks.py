"""Cases for `check` of functions on rows, with odd schema, settings, claim, budget or function."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

import dpaudit
from dpaudit.engine.request.check import PLANNING_MESSAGE
from dpaudit.errors import shortened
from tests.fuzz.odd_values import ANY, WRONG, Odd, anything
from tests.fuzz.outcome import Outcome, outcome

SCHEMA: dict[str, Any] = {"age": (0, 100), "weight": (40.0, 150.0), "sex": ["f", "m"]}


def count(rows: Any, rng: np.random.Generator, scale: float = 1.0) -> float:
    """Return a count with Laplace noise."""
    # NumPy would recurse without end into a scale that is a sequence of sequences.
    return float(len(rows) + rng.laplace(scale=float(scale)))


def exact(rows: Any, rng: np.random.Generator) -> Any:
    """Return the rows unchanged."""
    return rows


def fails(rows: Any, rng: np.random.Generator) -> NoReturn:
    """Raise at each call."""
    raise ValueError("no\nrows\x1b[2J")


def odd_output(rows: Any, rng: np.random.Generator) -> Any:
    """Return another odd value at each call."""
    values = (
        None,
        "",
        10**400,
        float("nan"),
        [1, [2]],
        {"a": {1: 2}},
        b"\xff",
        object,
        pd.NA,
        np.ma.masked,
        {1, 2},
        1j,
    )
    return values[int(rng.integers(len(values)))]


def many(rows: Any, rng: np.random.Generator) -> Any:
    """Return thousands of numbers."""
    return rng.normal(size=5_000)


class Ended(BaseException):
    """Raised where a run would start: all arguments were accepted."""


def _on_start(event: Any) -> None:
    if event.detail != PLANNING_MESSAGE:
        raise Ended


@dataclass(frozen=True)
class Checks:
    """Cases of `dpaudit.check` up to the start of its tests; a few run to the end."""

    folder: Path

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        run = dpaudit.RunOptions("in-process", figures=False)
        good: dict[str, Any] = {"mechanism": count, "schema": SCHEMA, "claim": 1.0, "budget": "0.05s", "run": run}
        changes: dict[str, Callable[[random.Random], Odd]] = {
            "mechanism": lambda rng: rng.choice(
                [
                    anything(rng),
                    *(Odd(each.__name__, each, ANY) for each in (exact, fails, odd_output, many, len, dict)),
                ]
            ),
            "schema": _schema,
            "settings": _settings,
            "claim": _claim,
            "budget": _budget,
            "relation": lambda rng: rng.choice([anything(rng), Odd("replace", "replace", ANY)]),
            "form": lambda rng: rng.choice(
                [anything(rng), *(Odd(form, form, ANY) for form in ("arrow", "array", "records", "list", "frame"))]
            ),
            **dict.fromkeys(("time", "memory_mb", "seed", "name", "confidence", "until_decided", "split"), anything),
            "data": lambda rng: rng.choice([anything(rng), Odd("a frame", pd.DataFrame({"age": [1, 2]}), ANY)]),
            "run": lambda rng: anything(rng, WRONG),
        }
        names = rng.sample(list(changes), rng.choices((1, 2, 3), (5, 3, 1))[0])
        odd = {name: changes[name](rng) for name in names}
        if "run" in odd and odd["run"].value is None:
            del odd["run"]
        words = ", ".join(f"{name} = {odd_value.words}" for name, odd_value in odd.items())
        values = {**good, **{name: odd_value.value for name, odd_value in odd.items()}}
        whole = rng.random() < 0.005 and "budget" not in odd and "run" not in odd

        def check() -> str:
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            listeners = {} if whole else {"listeners": [_on_start]}
            try:
                report = dpaudit.check(**values, output=self.folder / "run", quiet=True, **listeners)
                return str(report)
            except Ended:
                return "planned"

        nonsense = any(odd_value.means == WRONG for odd_value in odd.values())
        return f"check: {words}{', to the end' if whole else ''}", outcome(check, nonsense=nonsense)


def _schema(rng: random.Random) -> Odd:
    if rng.random() < 0.3:
        return anything(rng)
    odd_value = anything(rng)
    name = rng.choice(["age", "", "\ud800", "x" * 10_000, "a\nb", 1, None])
    bounds: list[Any] = [
        odd_value.value,
        (odd_value.value, 1),
        [0, odd_value.value],
        (0, 10**400),
        (1e308, -1e308),
        (-1e308, 1e308),
        (float("nan"), 1.0),
        (0, 2**53),
        (0, 2**63),
        (5, 5),
        [],
        ["a"] * 3,
        ["a", odd_value.value],
        [str(number) for number in range(5_000)],
        (0, 1, 2),
        {"low": 0},
        (True, False),
    ]
    at = rng.randrange(len(bounds))
    whole = {} if rng.random() < 0.7 else SCHEMA
    return Odd(f"{shortened(repr(name), 20)}: bounds {at} of {odd_value.words}", {**whole, name: bounds[at]}, ANY)


def _settings(rng: random.Random) -> Odd:
    odd_value = anything(rng)
    makers: list[Odd] = [
        odd_value,
        Odd(f"scale {odd_value.words}", {"scale": odd_value.value}, ANY),
        Odd(f"scales {odd_value.words}", {"scale": [odd_value.value, 1.0]}, ANY),
        Odd("many", {"scale": [float(number) for number in range(1, 100)]}, ANY),
        Odd("none", {"scale": []}, ANY),
        Odd("another name", {"other": 1}, ANY),
        Odd("rows", {"rows": 1}, ANY),
        Odd("epsilon", {"epsilon": odd_value.value}, ANY),
    ]
    return rng.choice(makers)


def _claim(rng: random.Random) -> Odd:
    words = (
        "1",
        "1, 1e-5",
        "rho=0.5",
        "mu=1",
        "rho=x",
        "mu=-1",
        "epsilon=nan",
        "1e999",
        "1,1,1",
        "=",
        ",",
        "mu=1, rho=1",
    )
    odd_value = anything(rng)
    arguments: list[Any] = [
        *words,
        (1.0, 1e-5),
        (odd_value.value, 0.0),
        (1.0, odd_value.value),
        [1.0],
        dpaudit.Claim(1.0),
        None,
        10**400,
    ]
    claim = rng.choice(arguments)
    return (
        odd_value
        if rng.random() < 0.4
        else Odd(f"claim of {odd_value.words}, {claim if isinstance(claim, str) else ''}", claim, ANY)
    )


def _budget(rng: random.Random) -> Odd:
    words = (
        "0.01s",
        "0s",
        "-1s",
        "1 trainings",
        "720 trainings",
        "0.05s, 720 trainings",
        "9" * 400 + "s",
        "x",
        "",
        ",",
        "1e5s",
    )
    odd = rng.choice((*words, "9" * 5000 + " trainings", "\u0663s", "1s,1s", "0.05 s", "s", "1m2s"))
    return anything(rng) if rng.random() < 0.3 else Odd(f"budget {odd[:30]!r}", odd, ANY)
