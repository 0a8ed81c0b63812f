"""Tests of `where_it_leaks`: functions with one defect each, and honest twins. Seeds are fixed: no random failures."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpaudit.claims import NO_FRACTIONS, Claim, GaussianDP, Relation
from dpaudit.engine.games.functions.replay import replay, replay_of
from dpaudit.engine.games.functions.where_it_leaks import Leak
from dpaudit.engine.games.functions.where_it_leaks import where_it_leaks as compare
from dpaudit.mechanisms.adapters.other_python.calls import OtherPython, call_in_process
from dpaudit.mechanisms.queries.row_function import CallOutcome
from tests import nightly

CLAIM = Claim(1.0, relation=Relation.ADD_REMOVE)
HERE = Path(__file__)


def table(x: list[float], colour: list[str] | None = None) -> pa.Table:
    return pa.table({"x": pa.array(x, pa.float64()), "colour": pa.array(colour or ["red"] * len(x), pa.string())})


D = table([1.0] * 50)
FEWER = table([1.0] * 49)
ONE_NAN = table([1.0] * 49 + [float("nan")])
ONE_BLUE = table([1.0] * 50, ["red"] * 49 + ["blue"])


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(HERE.read_text().splitlines(), 1) if line.strip().startswith(text))


def clipped(rows: Any) -> np.ndarray:
    return np.clip(np.nan_to_num(rows["x"].to_numpy()), 0, 1)


def where_it_leaks(
    function: Callable[..., Any],
    d: pa.Table,
    d_prime: pa.Table,
    claim: Claim,
    *,
    form: str = "frame",
    limit_s: float = 20.0,
    seed: int = 0,
    low_bits: bool = False,
) -> Leak:
    def replays(rows: pa.Table, seeds: Sequence[int], left_s: float) -> list[Any]:
        return [replay(function, rows, each, left_s, form, {}) for each in seeds]

    return compare(replays, d, d_prime, claim, limit_s=limit_s, seed=seed, low_bits=low_bits)


def where_it_leaks_elsewhere(
    call: Callable[[pa.Table, Sequence[int]], list[CallOutcome]], d: pa.Table, d_prime: pa.Table, claim: Claim
) -> Leak:
    def replays(rows: pa.Table, seeds: Sequence[int], left_s: float) -> list[Any]:
        return [replay_of(outcome) for outcome in call(rows, seeds)]

    return compare(replays, d, d_prime, claim, batch=8)


# Honest functions; x is in [0, 1], and a row more or less changes a sum by 1.


def noisy_sum(rows: Any, rng: np.random.Generator) -> float:
    return float(clipped(rows).sum() + rng.laplace(0, 1))


def noisy_parts(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    total = clipped(rows).sum() + rng.laplace(scale=1 / 0.5)
    return {"sum": total, "percent": 100 * total, "count": len(rows) + rng.laplace(scale=1 / 0.5)}


def noisy_histogram(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    return {colour: round((rows["colour"] == colour).sum() + rng.laplace(), 3) for colour in ("red", "blue")}


def rare_colours(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    """Partition selection: a colour of only one row is released with probability 0.002, the delta."""
    counts = {colour: float(n + rng.laplace(scale=2)) for colour, n in sorted(rows["colour"].value_counts().items())}
    return {colour: count for colour, count in counts.items() if count > 12}


def randomized_response(rows: Any, rng: np.random.Generator) -> bool:
    return bool((len(rows) % 2) ^ (rng.random() > np.e / (1 + np.e)))


def own_laplace(rows: Any, rng: np.random.Generator, sensitivity: float = 1.0) -> float:
    u = rng.random() - 0.5
    return float(clipped(rows).sum() - sensitivity * np.sign(u) * np.log(1 - 2 * abs(u)))


def shuffled(rows: Any, rng: np.random.Generator) -> float:
    return float(rng.permutation(clipped(rows)).sum() + rng.laplace())


def sparse_vector(rows: Any, rng: np.random.Generator) -> int:
    """Return the number of questions before the first one above the threshold; each takes one draw."""
    threshold = 15 + rng.laplace(scale=2)
    for question in range(20):
        if len(rows) * question / 20 + rng.laplace(scale=4) > threshold:
            return question
    return 20


def noisy_ratio(rows: Any, rng: np.random.Generator) -> float:
    """Numbers of any size, and none of them moved or scaled by the rest."""
    over, under = clipped(rows).sum() + rng.laplace(scale=2, size=2)
    return float(np.exp(40 * (over - 49.5)) / under)


def writes_and_prints(rows: Any, rng: np.random.Generator, bounds: list[float]) -> float:
    print("hello", file=sys.stderr)
    rows["x"] = rows["x"].clip(*bounds)
    bounds.append(0.0)
    return float(rows["x"].sum() + rng.laplace())


def rounded_count(rows: Any, rng: np.random.Generator) -> float:
    return round(len(rows) + rng.laplace(), 3)


HONEST: list[tuple[Callable[..., Any], pa.Table]] = [
    (noisy_sum, FEWER),
    (noisy_sum, ONE_NAN),
    (noisy_parts, FEWER),
    (noisy_histogram, table([1.0] * 51, ["red"] * 50 + ["blue"])),
    (rare_colours, table([1.0] * 51, ["red"] * 50 + ["blue"])),
    (randomized_response, FEWER),
    (own_laplace, FEWER),
    (shuffled, FEWER),
    (sparse_vector, FEWER),
    (noisy_ratio, FEWER),
    (partial(writes_and_prints, bounds=[0.0, 1.0]), FEWER),
    (rounded_count, FEWER),
]


BY_NIGHT = (noisy_parts, noisy_histogram, own_laplace, shuffled, noisy_ratio)


@pytest.mark.parametrize(
    ("function", "d_prime"),
    [pytest.param(*case, marks=[pytest.mark.nightly] if case[0] in BY_NIGHT else []) for case in HONEST],
)
def test_of_an_honest_function_nothing_differs(function: Callable[..., Any], d_prime: pa.Table) -> None:
    """The nightly run includes both directions."""
    for table, neighbour in ((D, d_prime), (d_prime, D))[: 2 if nightly.on() else 1]:
        leak = where_it_leaks(function, table, neighbour, CLAIM)
        assert not leak.is_located, leak.lines
        assert "No result stands out" in leak.lines[0]


# Each with one defect.


def half_the_noise(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    return {"mean": clipped(rows).sum() / 50 + rng.laplace(0, 0.5) / 50}


def half_the_noise_of_its_own(rows: Any, rng: np.random.Generator) -> float:
    return own_laplace(rows, rng, 0.5)


def gaussian(rows: Any, rng: np.random.Generator) -> np.ndarray:
    return np.array([0.0, clipped(rows).sum()]) + rng.normal(0, 1.0, 2)


def exact_count(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    return {"rows": len(rows), "sum": noisy_sum(rows, rng)}


def fails_on_nan(rows: Any, rng: np.random.Generator) -> float:
    total = rows["x"].sum(skipna=False) + rng.laplace()
    if np.isnan(total):
        raise ValueError(f"cannot add {len(rows)} rows")
    return float(total)


def keeps_the_colours(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    return {colour: float(n + rng.laplace()) for colour, n in sorted(rows["colour"].value_counts().items())}


def scales_by_the_rows(rows: Any, rng: np.random.Generator) -> float:
    return float(rng.laplace(clipped(rows).mean(), 1 / len(rows)))


def noise_for_each_colour(rows: Any, rng: np.random.Generator) -> float:
    return float(rng.laplace(size=rows["colour"].nunique()).sum() + len(rows))


def other_way_for_nan(rows: Any, rng: np.random.Generator) -> float:
    total = rows["x"].sum(skipna=False)
    if np.isnan(total):
        return float(rng.uniform(0, 50))
    return float(total + rng.laplace())


def warns(rows: Any, rng: np.random.Generator) -> float:
    if rows["x"].isna().any():
        warnings.warn("values are missing", stacklevel=2)
    return noisy_sum(rows, rng)


def exits(rows: Any, rng: np.random.Generator) -> float:
    return sys.exit(3) if rows["x"].isna().any() else noisy_sum(rows, rng)  # type: ignore[no-any-return]


FILE = HERE.name
AT = f"line {{}} of {FILE}"


def located_leak(function: Callable[..., Any], d_prime: pa.Table, claim: Claim = CLAIM) -> Leak:
    leak = where_it_leaks(function, D, d_prime, claim)
    assert leak.is_located, leak.lines
    assert len(leak.lines) <= 3
    return leak


def test_low_bits_tell_nothing_of_results_without_fractions() -> None:
    def whole_count(rows: Any, rng: np.random.Generator) -> int:
        return len(rows) + round(rng.laplace())

    assert where_it_leaks(whole_count, D, FEWER, CLAIM, low_bits=True).lines == (NO_FRACTIONS,)
    assert where_it_leaks(noisy_sum, D, FEWER, CLAIM, low_bits=True).lines == ()


def test_half_the_noise() -> None:
    leak = located_leak(half_the_noise, FEWER)
    place = AT.format(line_of('return {"mean": clipped(rows).sum() / 50 + rng.laplace(0, 0.5) / 50}'))
    assert leak.lines == (
        f"`result['mean']` moves by -0.02 from D to D', 2 times the scale of its noise (rng.laplace at {place}); "
        "the claim allows 1.",
    )
    assert not where_it_leaks(half_the_noise, D, FEWER, Claim(2.0, relation=Relation.ADD_REMOVE)).is_located


def test_half_the_noise_without_the_generator_s_laplace() -> None:
    leak = located_leak(half_the_noise_of_its_own, FEWER)
    assert leak.lines[0].startswith("`result` moves by -1 from D to D', about ")


@pytest.mark.nightly
def test_gaussian_noise_against_claims_of_several_kinds() -> None:
    """Noise of the sensitivity's size is 1-GDP, and no epsilon without delta."""
    leak = located_leak(gaussian, FEWER, Claim.of(GaussianDP(0.5), relation=Relation.ADD_REMOVE, delta=1e-5))
    assert leak.lines[0].startswith("number 2 of `result` moves by -1 from D to D', 1 times the standard deviation")
    assert leak.lines[0].endswith("the claim allows 0.5.")
    assert located_leak(gaussian, FEWER).lines[0].endswith("the claim allows 0.")
    honest = (Claim(1.0, 0.127), Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE))
    for claim in honest[: 2 if nightly.on() else 1]:
        assert not where_it_leaks(gaussian, D, FEWER, claim).is_located


def test_an_exact_count() -> None:
    leak = located_leak(exact_count, FEWER)
    assert leak.lines == ("`result['rows']` has no noise: 50 on D and 49 on D'.",)


def test_an_exception() -> None:
    leak = located_leak(fails_on_nan, ONE_NAN)
    line = line_of("if np.isnan(total):")
    raised = f"On D' alone it raises ValueError: cannot add 50 rows (line {line + 1} of {FILE})."
    assert leak.lines[0].startswith(raised)
    assert leak.lines[1] == (
        f"Line {line} of {FILE} (`if np.isnan(total):`) goes on to line {line + 2} on D and to line {line + 1} on D'."
    )


def test_an_exit() -> None:
    assert "On D' alone it raises SystemExit: 3" in located_leak(exits, ONE_NAN).lines[0]


def test_a_category() -> None:
    leak = located_leak(keeps_the_colours, ONE_BLUE)
    assert leak.lines[0] == "`result['blue']` comes back on D' alone."
    assert "`result['blue']` comes back on D alone" in where_it_leaks(keeps_the_colours, ONE_BLUE, D, CLAIM).lines[0]


def test_a_scale_from_the_number_of_rows() -> None:
    leak = located_leak(scales_by_the_rows, FEWER)
    place = AT.format(line_of("return float(rng.laplace(clipped(rows).mean(), 1 / len(rows)))"))
    draw, other_draw = (f"rng.laplace(scale={scale}, size=1) at {place}" for scale in ("0.02", "0.0204081633"))
    assert leak.lines[0] == f"Draw 1 is {draw} on D and {other_draw} on D'."
    assert f"{draw} on D'." in where_it_leaks(scales_by_the_rows, FEWER, D, CLAIM).lines[0]


def test_a_different_number_of_draws() -> None:
    """A different number of draws is no leak in itself: one draw per colour is honest if rare colours are dropped."""
    for function, d_prime, text, arguments, other_arguments in (
        (noise_for_each_colour, ONE_BLUE, "return float(rng.laplace(size=rows[", "scale=1, size=1", "scale=1, size=2"),
        (shuffled, FEWER, "return float(rng.permutation(", "size=50", "size=49"),
    ):
        leak = where_it_leaks(function, D, d_prime, CLAIM)
        assert not leak.is_located
        method = text.partition("(")[2].partition("(")[0]
        sides = (f"{method}({size}) at {AT.format(line_of(text))}" for size in (arguments, other_arguments))
        assert leak.lines[-1] == (
            "Draw 1 is {} on D and {} on D': from there on the same seed gives other numbers.".format(*sides)
        )
    leak = where_it_leaks(rare_colours, D, ONE_BLUE, CLAIM)
    assert "Draw 2 is missing on D and rng.laplace(scale=2, size=1) at line " in leak.lines[-1]


def test_another_way() -> None:
    leak = located_leak(other_way_for_nan, ONE_NAN)
    line = line_of("return float(rng.uniform(0, 50))")
    assert leak.lines[0].startswith("Draw 1 is rng.laplace(scale=1, size=1) at line ")
    assert leak.lines[0].endswith(f"rng.uniform(size=1) at line {line} of {FILE} on D'.")
    assert f"and to line {line} on D'." in leak.lines[1]


def test_a_warning() -> None:
    leak = located_leak(warns, ONE_NAN)
    assert leak.lines[0].startswith("It warns on D' alone: UserWarning: values are missing")


# Whatever code does, and other Pythons.


def from_elsewhere(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    return {"rows": len(rows), "noise": float(int.from_bytes(os.urandom(6), "big"))}


def for_ever(rows: Any, rng: np.random.Generator) -> float:
    while True:
        rng.random()


def test_randomness_from_elsewhere() -> None:
    assert "`result['rows']` has no noise" in located_leak(from_elsewhere, FEWER).lines[0]
    leak = where_it_leaks(from_elsewhere, D, table([2.0] * 50), CLAIM)
    assert not leak.is_located
    assert "takes randomness from elsewhere" in leak.lines[-1]


def test_a_function_without_end_is_left() -> None:
    leak = where_it_leaks(for_ever, D, FEWER, CLAIM, limit_s=0.2)
    assert (leak.is_located, leak.replays) == (False, 1)


def test_a_call_without_end_on_one_table_is_named() -> None:
    def loops_on_nan(rows: Any, rng: np.random.Generator) -> float:
        while rows["x"].isna().any():
            rng.random()
        return 0.0

    leak = where_it_leaks(loops_on_nan, D, ONE_NAN, CLAIM, limit_s=0.5)
    assert leak.lines[0].endswith("on D and out of time on D'.")


def test_the_same_is_said_again_and_nothing_of_ours_stays() -> None:
    def noted(frame: Any, event: str, arg: Any) -> None: ...

    before, state = sys.gettrace(), np.random.get_state()[1].copy()  # type: ignore[union-attr]
    sys.settrace(noted)
    try:
        first = where_it_leaks(fails_on_nan, D, ONE_NAN, CLAIM, seed=5)
        assert sys.gettrace() is noted
    finally:
        sys.settrace(before)
    assert first == where_it_leaks(fails_on_nan, D, ONE_NAN, CLAIM, seed=5)
    assert np.array_equal(np.random.get_state()[1], state)  # type: ignore[index]


@pytest.mark.parametrize("form", ["frame", "arrow", "array", "records", "list"])
def test_every_form_of_rows(form: str) -> None:
    def count(rows: Any, rng: np.random.Generator) -> int:
        return len(rows)

    leak = where_it_leaks(count, D.select(["x"]), FEWER.select(["x"]), CLAIM, form=form)
    assert "50 on D and 49 on D'" in leak.lines[0]


def test_by_what_comes_back_alone() -> None:
    leak = where_it_leaks_elsewhere(partial(call_in_process, fails_on_nan), D, ONE_NAN, CLAIM)
    assert leak.lines[0].startswith("On D' alone it raises ValueError: cannot add 50 rows")
    leak = where_it_leaks_elsewhere(partial(call_in_process, exact_count), D, FEWER, CLAIM)
    assert leak.lines[0].startswith("number 1 of `result` has no noise: 50 on D and 49 on D'")
    leak = where_it_leaks_elsewhere(partial(call_in_process, half_the_noise_of_its_own), D, FEWER, CLAIM)
    assert leak.lines[0].startswith("`result` moves by -1 from D to D', about ")
    for function, d_prime in HONEST:
        assert not where_it_leaks_elsewhere(partial(call_in_process, function), D, d_prime, CLAIM).is_located


def test_in_another_python(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(
        "def count(rows, rng):\n    return {'rows': len(rows), 'noise': rng.random()}\n"
    )
    with OtherPython(sys.executable, "counting:count", form="records", path=[str(tmp_path)]) as other:
        leak = where_it_leaks_elsewhere(other.call, D, FEWER, CLAIM)
    assert "has no noise: 50 on D and 49 on D'" in leak.lines[0]
