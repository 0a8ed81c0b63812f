"""Where it leaks: functions with one defect each, and honest twins; the seeds are fixed, so nothing fails by chance."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpaudit.claims import Claim, GaussianDP, Relation
from dpaudit.engine.games.functions.where_it_leaks import Leak, where_it_leaks, where_it_leaks_elsewhere
from dpaudit.mechanisms.adapters.other_python.calls import OtherPython, call_in_process
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


# Honest functions; x is in [0, 1], and a row more or less changes a sum by 1.


def noisy_sum(rows: Any, rng: np.random.Generator) -> float:
    return float(clipped(rows).sum() + rng.laplace(0, 1))


def noisy_parts(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    total = clipped(rows).sum() + rng.laplace(scale=1 / 0.5)
    return {"sum": total, "percent": 100 * total, "count": len(rows) + rng.laplace(scale=1 / 0.5)}


def noisy_histogram(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    return {colour: round((rows["colour"] == colour).sum() + rng.laplace(), 3) for colour in ("red", "blue")}


def rare_colours(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    """Partition selection: a colour that one row has is given with a probability of 0.002, the delta."""
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
    """How many questions are answered until one is above the threshold: as many draws."""
    threshold = 15 + rng.laplace(scale=2)
    for asked in range(20):
        if len(rows) * asked / 20 + rng.laplace(scale=4) > threshold:
            return asked
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
    """By night in both directions."""
    for here, there in ((D, d_prime), (d_prime, D))[: 2 if nightly.on() else 1]:
        leak = where_it_leaks(function, here, there, CLAIM)
        assert not leak.found, str(leak)
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


def scales_afterwards(rows: Any, rng: np.random.Generator) -> float:
    return float((clipped(rows).sum() + rng.standard_normal()) / len(rows))


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


def spends_twice(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    return {"sum": clipped(rows).sum() + rng.laplace(), "count": len(rows) + rng.laplace()}


def exits(rows: Any, rng: np.random.Generator) -> float:
    return sys.exit(3) if rows["x"].isna().any() else noisy_sum(rows, rng)  # type: ignore[no-any-return]


FILE = HERE.name
AT = f"line {{}} of {FILE}"
LAPLACE = f"rng.laplace at line {{}} of {FILE}"


def found(function: Callable[..., Any], d_prime: pa.Table, claim: Claim = CLAIM) -> Leak:
    leak = where_it_leaks(function, D, d_prime, claim)
    assert leak.found, str(leak)
    assert len(leak.lines) <= 3
    return leak


# Exact noise, whose low bits tell what it was added to.


def noisy_count(rows: Any, rng: np.random.Generator) -> float:
    return len(rows) + rng.laplace()


def in_single_precision(rows: Any, rng: np.random.Generator) -> np.ndarray:
    return np.array([0.0, np.float32(rng.laplace()) + np.float32(len(rows))], np.float32)


def own_noise_for_the_mean(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    return {"mean": own_laplace(rows, rng) / 2}


@pytest.mark.parametrize(
    ("function", "claim"),
    [
        (noisy_count, CLAIM),
        pytest.param(noisy_count, Claim(2.0, relation=Relation.ADD_REMOVE), marks=pytest.mark.nightly),
        (in_single_precision, CLAIM),
        (own_noise_for_the_mean, CLAIM),
    ],
)
def test_low_bits_are_named(function: Callable[..., Any], claim: Claim) -> None:
    for d, d_prime, finer in ((table([]), table([1.0]), "D."), (table([1.0]), table([]), "D'.")):
        leak = where_it_leaks(function, d, d_prime, claim, low_bits=True)
        assert "The low bits of " in leak.field, str(leak)
        assert f" on {finer} " in leak.field


def test_low_bits_are_left_out_unless_they_are_asked_for() -> None:
    leak = where_it_leaks(noisy_count, table([]), table([1.0]), CLAIM)
    assert not leak.found, str(leak)
    assert where_it_leaks(noisy_count, table([]), table([1.0]), CLAIM, low_bits=True).found
    other = where_it_leaks(half_the_noise, D, FEWER, CLAIM, low_bits=True)
    assert "moves by" not in str(other)


def test_low_bits_of_a_function_elsewhere_are_named() -> None:
    call = partial(call_in_process, noisy_count)
    leak = where_it_leaks_elsewhere(call, table([]), table([1.0]), CLAIM, low_bits=True)
    assert "The low bits of `result`" in leak.field
    assert not where_it_leaks_elsewhere(call, table([]), table([1.0]), CLAIM).found


def test_of_rounded_noise_the_low_bits_tell_nothing() -> None:
    assert not where_it_leaks(rounded_count, table([]), table([1.0]), CLAIM, low_bits=True).found


def test_half_the_noise() -> None:
    leak = found(half_the_noise, FEWER)
    place = AT.format(line_of('return {"mean": clipped(rows).sum() / 50 + rng.laplace(0, 0.5) / 50}'))
    assert leak.lines == (
        f"`result['mean']` moves by -0.02 from D to D', 2 times the scale of its noise (rng.laplace at {place}); "
        "the claim allows 1.",
    )
    assert not where_it_leaks(half_the_noise, D, FEWER, Claim(2.0, relation=Relation.ADD_REMOVE)).found


def test_half_the_noise_without_the_generator_s_laplace() -> None:
    leak = found(half_the_noise_of_its_own, FEWER)
    assert leak.field.startswith("`result` moves by -1 from D to D', about ")


@pytest.mark.nightly
def test_gaussian_noise_against_claims_of_several_kinds() -> None:
    """Noise of the sensitivity's size is 1-GDP, and no epsilon without delta."""
    leak = found(gaussian, FEWER, Claim.of(GaussianDP(0.5), relation=Relation.ADD_REMOVE, delta=1e-5))
    assert leak.field.startswith("number 2 of `result` moves by -1 from D to D', 1 times the standard deviation")
    assert leak.field.endswith("the claim allows 0.5.")
    assert found(gaussian, FEWER).field.endswith("the claim allows 0.")
    honest = (Claim(1.0, 0.127), Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE))
    for claim in honest[: 2 if nightly.on() else 1]:
        assert not where_it_leaks(gaussian, D, FEWER, claim).found


def test_an_exact_count() -> None:
    leak = found(exact_count, FEWER)
    assert leak.lines == (f"`result['rows']` has no noise: 50 on D and 49 on D' in {leak.replays} replays.",)


def test_an_exception() -> None:
    leak = found(fails_on_nan, ONE_NAN)
    line = line_of("if np.isnan(total):")
    raised = f"On D' alone it raises ValueError: cannot add 50 rows (line {line + 1} of {FILE}), in "
    assert leak.field.startswith(raised)
    assert leak.line == (
        f"Line {line} of {FILE} (`if np.isnan(total):`) goes on to line {line + 1} on D' alone, "
        f"on D to line {line + 2}."
    )


def test_an_exit() -> None:
    assert "On D' alone it raises SystemExit: 3" in found(exits, ONE_NAN).field


def test_a_category() -> None:
    leak = found(keeps_the_colours, ONE_BLUE)
    assert leak.field == f"`result['blue']` comes back on D' alone, in {leak.replays} of {leak.replays} replays."
    assert "`result['blue']` comes back on D alone" in where_it_leaks(keeps_the_colours, ONE_BLUE, D, CLAIM).field


def test_a_scale_from_the_number_of_rows() -> None:
    leak = found(scales_by_the_rows, FEWER)
    place = LAPLACE.format(line_of("return float(rng.laplace(clipped(rows).mean(), 1 / len(rows)))"))
    assert leak.call == f"{place} is asked for scale 0.02 on D and 0.0204081633 on D'."
    assert "0.0204081633 on D" in where_it_leaks(scales_by_the_rows, FEWER, D, CLAIM).call


def test_noise_that_is_scaled_afterwards() -> None:
    leak = found(scales_afterwards, FEWER, Claim.of(GaussianDP(2.0), relation=Relation.ADD_REMOVE))
    assert leak.field == "The noise of `result` is 1.02041 times as wide on D' as on D."


def test_a_different_number_of_draws() -> None:
    """What is said of it need not leak: a draw for each colour is honest where few rows' colours never come back."""
    for function, text, what in (
        (noise_for_each_colour, "return float(rng.laplace(size=rows[", "draws 1 values on D and 2 on D'"),
        (shuffled, "return float(rng.permutation(", "draws 50 values on D and 49 on D'"),
    ):
        leak = where_it_leaks(function, D, ONE_BLUE if function is noise_for_each_colour else FEWER, CLAIM)
        assert not leak.found
        place = f"{text.partition('rng.')[2].partition('(')[0]} at line {line_of(text)} of {FILE}"
        assert leak.lines[-1] == f"rng.{place} {what}: from there on the same seed gives other numbers."
    leak = where_it_leaks(rare_colours, D, ONE_BLUE, CLAIM)
    assert "Draw 2 is not made on D and rng.laplace (line " in leak.note


def test_another_way() -> None:
    leak = found(other_way_for_nan, ONE_NAN)
    line = line_of("return float(rng.uniform(0, 50))")
    assert leak.call.startswith("Draw 1 is rng.laplace (line ")
    assert leak.call.endswith(f"rng.uniform (line {line} of {FILE}) on D'.")
    assert f"goes on to line {line} on D' alone" in leak.line


def test_a_warning() -> None:
    leak = found(warns, ONE_NAN)
    assert leak.field.startswith("It warns on D' alone, in ")
    assert "UserWarning: values are missing" in leak.field


def test_a_budget_that_is_spent_twice() -> None:
    leak = found(spends_twice, FEWER)
    assert leak.field == (
        "`result['sum']` and `result['count']` move by 2 times the scale of their noise together; the claim allows 1."
    )


# Whatever code does, and other Pythons.


def from_elsewhere(rows: Any, rng: np.random.Generator) -> dict[str, float]:
    return {"rows": len(rows), "noise": float(int.from_bytes(os.urandom(6), "big"))}


def for_ever(rows: Any, rng: np.random.Generator) -> float:
    while True:
        rng.random()


def test_randomness_from_elsewhere() -> None:
    assert "`result['rows']` has no noise" in found(from_elsewhere, FEWER).field
    leak = where_it_leaks(from_elsewhere, D, table([2.0] * 50), CLAIM)
    assert not leak.found
    assert "takes randomness from elsewhere" in leak.lines[-1]


def test_a_function_without_end_is_left() -> None:
    leak = where_it_leaks(for_ever, D, FEWER, CLAIM, limit_s=0.2)
    assert (leak.found, leak.replays) == (False, 0)


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
    assert "50 on D and 49 on D'" in leak.field


def test_by_what_comes_back_alone() -> None:
    leak = where_it_leaks_elsewhere(partial(call_in_process, fails_on_nan), D, ONE_NAN, CLAIM)
    assert leak.field.startswith("On D' alone it raises ValueError: cannot add 50 rows, in ")
    leak = where_it_leaks_elsewhere(partial(call_in_process, exact_count), D, FEWER, CLAIM)
    assert leak.field.startswith("number 1 of `result` has no noise: 50 on D and 49 on D'")
    leak = where_it_leaks_elsewhere(partial(call_in_process, half_the_noise_of_its_own), D, FEWER, CLAIM)
    assert leak.field.startswith("`result` moves by -1 from D to D', about ")
    for function, d_prime in HONEST:
        assert not where_it_leaks_elsewhere(partial(call_in_process, function), D, d_prime, CLAIM).found


def test_in_another_python(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(
        "def count(rows, rng):\n    return {'rows': len(rows), 'noise': rng.random()}\n"
    )
    with OtherPython(sys.executable, "counting:count", form="records", path=[str(tmp_path)]) as other:
        leak = where_it_leaks_elsewhere(other.call, D, FEWER, CLAIM)
    assert "has no noise: 50 on D and 49 on D'" in leak.field
