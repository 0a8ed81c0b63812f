"""After a VIOLATION: where a function treats two neighbouring tables differently, and both tables as Python source.

The place is found by replays with the same seeds.

It is a hint for the author of the function and no part of a verdict. With the same seed, honest code draws the
same noise and moves a number by a fixed amount, small against its noise. Other differences are reported if all replays
show them. Code that keeps its claim does so with a probability of at most CHANCE, if there is time for enough replays.
"""

from __future__ import annotations

import itertools
import linecache
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.claims import NO_FRACTIONS, Claim, GaussianDP
from dpaudit.engine.games.digits import LEVELS, lattice_step
from dpaudit.engine.games.functions.neighbouring_tables import LONG_WORD_LENGTH, TablePair
from dpaudit.engine.games.functions.replay import NOISE, ORDER_OF_KEYS, Draw, Replay
from dpaudit.errors import shortened

CHANCE = 1e-4
FEWEST, MOST = 64, 600  # replays of each table
DISTINCT = 8  # values of a number that has noise
SCALE_MARGIN = 1.5  # factor on the allowed move of a number if the scale of its noise is estimated
UNITS = {"laplace": "scale", "normal": "standard deviation"}

Vector = NDArray[np.float64]
Pairs = Sequence[tuple[Replay, Replay]]  # on D and on D', with the same seeds


@dataclass(frozen=True)
class Leak:
    """The place where a function leaks."""

    lines: tuple[str, ...]  # sentences
    is_located: bool  # True if a part of the result or a random draw differs beyond noise
    replays: int  # seeds that were replayed on both tables


def where_it_leaks(
    replays: Callable[[pa.Table, Sequence[int], float], Sequence[Replay]],
    d: pa.Table,
    d_prime: pa.Table,
    claim: Claim,
    *,
    batch: int = 1,
    seed: int = 0,
    limit_s: float = 20.0,
    low_bits: bool = False,
) -> Leak:
    """Replay a function on both tables with the same seeds and compare.

    Args:
        replays: Function that replays the audited one on a table, once for each seed. Its last argument is the time
            limit of a call, in seconds.
        d, d_prime: Neighbours under the claim's relation.
        batch: Number of seeds for each call of `replays`.
        low_bits: True to look only for numbers with a fraction: without one, low bits of numbers cannot leak.
    Raises: InputError if the function does not accept a table.
    """
    until = time.monotonic() + limit_s
    seeds = np.random.SeedSequence(seed).generate_state(MOST).tolist()

    equal_error = _largest(1.0, lambda rate: claim.curve.miss_rate(rate) > rate)
    enough = math.ceil(math.log(CHANCE) / math.log1p(-max(equal_error, 1e-9)))
    pairs: list[tuple[Replay, Replay]] = []
    while len(pairs) < min(MOST, max(FEWEST, enough)) and (left_s := until - time.monotonic()) > 0:
        some = seeds[len(pairs) : len(pairs) + batch]
        for on_d, on_d_prime in zip(replays(d, some, left_s), replays(d_prime, some, left_s), strict=True):
            first = next((two for two in zip(on_d.steps, on_d_prime.steps, strict=False) if two[0] != two[1]), ())
            on_d.steps, on_d_prime.steps = list(first[:1]), list(first[1:])  # the others would fill the memory
            pairs.append((on_d, on_d_prime))
    if low_bits:
        parts = [part for pair in pairs for side in pair for part in side.parts.values()]
        return Leak(() if any(np.mod(part.numbers, 1).any() for part in parts) else (NO_FRACTIONS,), False, len(pairs))
    all_names = sorted(
        {name for pair in pairs for side in pair for name in side.parts}, key=lambda name: (len(name), name)
    )
    orders = [name for name in all_names if name.startswith(ORDER_OF_KEYS)]
    names = [name for name in all_names if name not in orders]
    allowed = {law: _allowed(claim, law) for law in UNITS}
    result = _first(_ending(pairs, name) for name in names)
    result = result or _first(_move(*number, allowed) for number in _numbers(pairs, names))
    result = result or _first(_ending(pairs, name) for name in orders)
    (draw, note), line = _draws(pairs), _branch(pairs)
    if replays(d, seeds[:1], limit_s)[0].parts != pairs[0][0].parts:
        note = (
            "The same seed on the same table gives other results: it takes randomness from elsewhere, or keeps state."
        )
    nothing = (
        f"No result stands out in {len(pairs)} replays with the same seeds. The noise may be too small for the "
        "difference of both tables: check noise scale and clipping, and that epsilon is spent once."
    )
    lines = (result, draw, line, "" if result else note) if result or draw else (nothing, line, note)
    return Leak(tuple(filter(None, lines)), bool(result or draw), len(pairs))


def _first(sentences: Iterable[str]) -> str:
    differences = [sentence for sentence in sentences if sentence]
    more = f" {len(differences) - 1} more parts of the result differ too." if len(differences) > 1 else ""
    return differences[0] + more if differences else ""


def _disjoint(pairs: Pairs, get: Callable[[Replay], Hashable]) -> bool:
    """True if no replay on D has a value in common with a replay on D'."""
    return {get(on_d) for on_d, _ in pairs}.isdisjoint(get(on_d_prime) for _, on_d_prime in pairs)


def _ending(pairs: Pairs, name: str) -> str:
    """Compare the discrete content of a part."""

    def ending(replay: Replay) -> str:
        return replay.parts[name].ending if name in replay.parts else ""

    if not _disjoint(pairs, ending):
        return ""
    on_d, on_d_prime = (shortened(ending(replay)) for replay in pairs[0])
    for table, replay in zip(("D", "D'"), pairs[0], strict=True):
        if replay.error:
            return f"On {table} alone it {shortened(replay.error, 200)}."
    if on_d and on_d_prime:
        return f"`{name}` is {on_d} on D and {on_d_prime} on D'."
    alone = "on D alone" if on_d else "on D' alone"
    return f"It warns {alone}: {on_d or on_d_prime}." if name == "warnings" else f"`{name}` comes back {alone}."


def _draws(pairs: Pairs) -> tuple[str, str]:
    """Return the first draw of noise with another law or scale, and the first that puts the generators out of step.

    A draw that only one table makes need not leak: the number with that noise may never come back.
    """

    def words(draw: Draw | None) -> str:
        scale = f"scale={shortened(draw.scale, 60)}, " if draw and draw.scale else ""
        return f"rng.{draw.method}({scale}size={draw.size}) at {draw.place}" if draw else "missing"

    in_step, note = all(len(on_d.draws) == len(on_d_prime.draws) for on_d, on_d_prime in pairs), ""
    for place, draws in enumerate(itertools.zip_longest(*(side.draws for side in pairs[0]))):
        if _disjoint(pairs, lambda side: side.draws[place][:3] if place < len(side.draws) else None):  # noqa: B023
            sentence = f"Draw {place + 1} is {words(draws[0])} on D and {words(draws[1])} on D'"
            if in_step and draws[0].size == draws[1].size and all(draw.method in NOISE for draw in draws):
                return f"{sentence}.", note
            note = note or f"{sentence}: from there on the same seed gives other numbers."
    return "", note


def _branch(pairs: Pairs) -> str:
    """Return the first line that is followed by another line on D' than on D, which need not leak."""
    branches = {(*on_d.steps, *on_d_prime.steps) for on_d, on_d_prime in pairs}
    steps = branches.pop()
    if branches or not steps or steps[0][:3] != steps[1][:3]:
        return ""
    file, function, number, _ = steps[0]
    text = shortened(linecache.getline(file, number).strip(), 80)
    on_d, on_d_prime = (f"line {step[3]}" if step[3] else f"the end of `{function}`" for step in steps)
    return f"Line {number} of {os.path.basename(file)} (`{text}`) goes on to {on_d} on D and to {on_d_prime} on D'."


def _numbers(pairs: Pairs, names: Sequence[str]) -> Iterator[tuple[str, Vector, Vector, Pairs]]:
    """Yield the name of each number, its values on D and D', and the replays in which its part has its usual form."""
    for name in names:

        def form(replay: Replay) -> tuple[str, int]:
            ending, numbers = replay.parts.get(name, ("", ()))  # noqa: B023
            return ending, len(numbers)

        usual = Counter(form(on_d) for on_d, _ in pairs).most_common(1)[0][0]
        alike = [pair for pair in pairs if form(pair[0]) == form(pair[1]) == usual]
        if usual[1] and len(alike) >= max(DISTINCT, len(pairs) / 2):
            a, b = (np.array([pair[side].parts[name].numbers for pair in alike]) for side in (0, 1))
            for place in range(usual[1]):
                label = f"`{name}`" if usual[1] == 1 else f"number {place + 1} of `{name}`"
                yield label, a[:, place], b[:, place], alike


@np.errstate(all="ignore")  # an overflow equals nothing
def _move(name: str, a: Vector, b: Vector, pairs: Pairs, allowed: Mapping[str, float]) -> str:
    """Return a sentence on a number without noise, or one that moves further than the claim allows."""
    rounding = 1e-9 * float(np.median(np.abs(a)) + np.median(np.abs(b)))
    if max(np.ptp(a), np.ptp(b)) <= rounding:
        return f"{name} has no noise: {a[0]:.9g} on D and {b[0]:.9g} on D'." if abs(a[0] - b[0]) > rounding else ""
    by = float(np.median(b - a))
    same = np.abs(b - a - by) <= rounding
    a = a[same]
    if not by or same.mean() < 0.5 or len(np.unique(a)) < DISTINCT or np.ptp(a) <= rounding:
        return ""
    step = lattice_step(a, float(np.ptp(a)))
    if step and abs(by / step - round(by / step)) > 1 / LEVELS + rounding / step:
        return f"{name} moves by {by:.9g} from D to D', between the steps of its noise, which are {step:.6g}."
    noise = _noise(a, [on_d for (on_d, _), keep in zip(pairs, same, strict=True) if keep], rounding)
    if noise is None:
        law, about, place = "laplace", "about ", ""
        ratio = abs(by) / float(np.abs(a - np.median(a)).mean())
        exceeds = ratio > SCALE_MARGIN * max(allowed["laplace"], allowed["normal"] / 0.7)  # for any law of the noise
    else:
        law, scale, at = noise
        ratio, about, place = abs(by) / scale, "", f" (rng.{law} at {at})"
        exceeds = ratio > allowed[law] * (1 + 1e-6)
    much = f"{about}{ratio:.3g} times the {UNITS[law]} of its noise{place}"
    return f"{name} moves by {by:.4g} from D to D', {much}; the claim allows {allowed[law]:.3g}." if exceeds else ""


def _noise(a: Vector, replays: Sequence[Replay], rounding: float) -> tuple[str, float, str] | None:
    """Return the law, scale and place of the noise that was added to a number, or None if no draw was."""
    for draws in zip(*(replay.draws for replay in replays), strict=False):
        law = draws[0].method.removeprefix("standard_")
        if law in UNITS and len({draw[:3] for draw in draws}) == 1:
            noise = np.array([draw.noise for draw in draws])  # shape (replays, values)
            noise, centred = noise - noise.mean(axis=0), a - a.mean()
            slopes = centred @ noise / (noise * noise).sum(axis=0)
            errors = np.nan_to_num(np.abs(centred[:, None] - slopes * noise).max(axis=0), nan=np.inf)
            best = int(errors.argmin())
            if errors[best] <= 1e-6 * np.abs(centred).max() + rounding:
                return law, abs(float(slopes[best])), draws[0].place
    return None


def _largest(high: float, holds: Callable[[float], bool]) -> float:
    """Return the largest number in [0, high] that a condition holds for, if it holds for all below."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _allowed(claim: Claim, law: str) -> float:
    """Return how far, in units of its noise, the claim lets a number with noise of this law move."""
    if law == "normal" and math.isfinite(claim.curve.epsilon(0.0)):
        return 0.0  # Gaussian tails break any claim without delta
    epsilons = [0.0, *np.geomspace(1e-3, 50.0, 60).tolist(), min(claim.epsilon, 500.0)]

    def needed(ratio: float, epsilon: float) -> float:
        return GaussianDP(ratio).delta(epsilon) if law == "normal" else max(0.0, -math.expm1((epsilon - ratio) / 2))

    return _largest(1e3, lambda ratio: all(needed(ratio, each) <= claim.curve.delta(each) + 1e-12 for each in epsilons))


def as_test(pair: TablePair) -> str:
    """Return Python source that builds both tables as lists of rows, `d` and `d_prime`; each row is a mapping.

    It reproduces all cells exactly, including -0.0, NaN, None and integers.
    """
    tables = [table.to_pylist() for table in (pair.d, pair.d_prime)]
    floats = {repr(abs(cell)) for rows in tables for row in rows for cell in row.values() if isinstance(cell, float)}

    def cell_source(cell: object) -> str:
        is_long = isinstance(cell, str) and len(cell) == LONG_WORD_LENGTH and len(set(cell)) == 1
        return f"{cell[0]!r} * {LONG_WORD_LENGTH}" if is_long else repr(cell)  # type: ignore[index]

    def row_source(row: Mapping[str, Any]) -> str:
        return "{" + ", ".join(f"{name!r}: {cell_source(cell)}" for name, cell in row.items()) + "}"

    d, d_prime = ([row_source(row) for row in rows] for rows in tables)
    used = ", ".join(sorted(floats & {"inf", "nan"}))
    head = f"from math import {used}\n\n" if used else ""
    return f"{head}d = {_rows_source(d)}\nd_prime = {_relative_source(d, d_prime)}\n"


def _rows_source(rows: Sequence[str]) -> str:
    """Return the source of a list of rows; consecutive equal rows are written once."""
    runs = [(row, len(list(run))) for row, run in groupby(rows)]
    parts = []
    for repeated, group_runs in groupby(runs, key=lambda run: run[1] > 1):
        if repeated:
            parts += [f"[{row}] * {count}" for row, count in group_runs]
            continue
        single = [row for row, _ in group_runs]
        parts.append(f"[{single[0]}]" if len(single) == 1 else "[\n" + "".join(f"    {row},\n" for row in single) + "]")
    return " + ".join(parts) or "[]"


def _relative_source(d: Sequence[str], d_prime: Sequence[str]) -> str:
    """Return the source of the second list, in terms of the first if that is shorter."""
    if d and d_prime[: len(d)] == d:
        return f"d + {_rows_source(d_prime[len(d) :])}"
    changed = [place for place, (first, second) in enumerate(zip(d, d_prime, strict=False)) if first != second]
    if len(d) == len(d_prime) and changed[-1] - changed[0] < len(d) // 2:
        start, end = changed[0], changed[-1] + 1
        before, after = f"d[:{start}] + " if start else "", f" + d[{end}:]" if end < len(d) else ""
        return before + _rows_source(d_prime[start:end]) + after
    return _rows_source(d_prime)
