"""Graphs of calls of unit functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dpaudit.actors import fingerprint
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.work import Call, Outcome, Work, inlined, outcome_metadata, unit, value_of
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute
from tests.own_mechanism import KeepsEverything

ONE = Resources()


@dataclass(frozen=True, eq=False)
class Numbers:
    values: NDArray[np.float64]


@unit
def draw(count: int, *, seed: Seed) -> Outcome[Numbers]:
    numbers = seed.rng().normal(size=count)
    return Outcome(Numbers(numbers), ("chose nothing",), {"mean": float(numbers.mean())}, ("trial 3 failed",))


@unit
def add_up(parts: tuple[Numbers, ...], more: Numbers | None, data: Any = None) -> Numbers:
    return Numbers(sum((part.values for part in parts), np.zeros(3)) + (0 if more is None else more.values))


@unit
def pieces(number: Numbers, compute: Compute, *, first: int, last: int) -> Iterator[Numbers]:
    for piece in range(first, last):
        yield Numbers(number.values * piece + compute.threads)


@unit
def pieces_with_failure(number: Numbers) -> Outcome[Iterator[Numbers]]:
    return Outcome(iter((number, number)), failures=("one is missing",))


@unit
def total(many: Any) -> Numbers:
    return Numbers(np.array([sum(float(part.values.sum()) for part in many)]))


def run(work: Work) -> dict[str, pa.Table]:
    """Return the table of every unit by key."""
    tables: dict[str, pa.Table] = {}
    for planned in work.units.values():
        shared = {name: work.shared[name] for name in planned.shared}
        inputs = Inputs(shared, {key: tables[key] for key in planned.needs})
        tables[planned.key] = planned.task.run(inputs, planned.resources.compute())
    return tables


def value(tables: dict[str, pa.Table], planned: Unit) -> Any:
    assert isinstance(planned.task, Call)
    return value_of(planned, tables[planned.key])


def test_values_are_passed_between_units() -> None:
    work = Work()
    parts = tuple(work.add(draw, 3, seed=Seed(1).child(part), label=f"part {part}", resources=ONE) for part in range(2))
    both = work.add(add_up, parts, parts[0], work.share("target:abc", np.ones(2)), label="sum", resources=ONE)
    assert both.needs == tuple(unit.key for unit in parts)
    assert both.shared == ("target:abc",)
    tables = run(work)
    first, second = (Seed(1).child(part).rng().normal(size=3) for part in range(2))
    assert value(tables, both).values.tolist() == (first + second + first).tolist()
    outcome = outcome_metadata(tables[parts[0].key].schema)
    assert (outcome.notes, outcome.failures, outcome.metrics) == (
        ("chose nothing",),
        ("trial 3 failed",),
        {"mean": first.mean()},
    )
    assert outcome_metadata(tables[both.key].schema) == Outcome(None)


def test_a_loop_is_split_and_may_be_inlined() -> None:
    work = Work()
    source = work.add(draw, 3, seed=Seed(1), label="drawn", resources=ONE)
    parts = work.split(pieces, 5, 2, source, label="pieces", resources=ONE, offset=0)
    assert [(part.label, part.task.argument("last")) for part in parts] == [  # type: ignore[attr-defined]
        ("pieces 1-2", 2),
        ("pieces 3-4", 4),
        ("pieces 5-5", 5),
    ]
    counted = [work.add(total, part, label="counted", resources=ONE) for part in parts]
    without = [work.add(total, inlined(part), label="counted at once", resources=ONE) for part in parts]
    assert [unit.needs for unit in without] == [(source.key,)] * 3
    tables = run(work)
    for stored, other in zip(counted, without, strict=True):
        assert value(tables, stored).values.tolist() == value(tables, other).values.tolist()


def test_outcomes_of_several_values_are_stored_by_the_unit_that_computes_them() -> None:
    work = Work()
    source = work.add(pieces_with_failure, Numbers(np.ones(3)), label="source", resources=ONE)
    both = [work.add(total, argument, label="summed", resources=ONE) for argument in (source, inlined(source))]
    tables = run(work)
    assert [value(tables, unit).values.tolist() for unit in both] == [[6.0], [6.0]]
    when_inlined, when_separate = (outcome_metadata(tables[planned.key].schema).failures for planned in reversed(both))
    assert outcome_metadata(tables[source.key].schema).failures == when_inlined == ("one is missing",)
    assert when_separate == ()


def test_an_inlined_call_is_computed_by_the_unit_that_needs_it() -> None:
    """That unit also needs the units and large inputs of the call, at any depth."""
    work = Work()
    source = work.add(draw, 3, seed=Seed(1), label="drawn", resources=ONE)
    sum_of = inlined(add_up, (source, source), None, work.share("target:abc", np.ones(2)))
    nested = inlined(add_up, (), sum_of)
    last = work.add(total, (nested, sum_of), label="total", resources=ONE)
    assert (last.needs, last.shared, len(work.units)) == ((source.key,), ("target:abc",), 2)
    tables = run(work)
    assert value(tables, last).values.tolist() == pytest.approx([4 * value(tables, source).values.sum()])
    with pytest.raises(InputError, match="@unit"):
        inlined(value)


def test_pieces_are_counted_from_the_offset() -> None:
    work = Work()
    source = work.add(draw, 3, seed=Seed(1), label="drawn", resources=ONE)
    parts = work.split(pieces, 3, 2, source, label="pieces", resources=ONE, offset=10)
    ends = [(part.task.argument("first"), part.task.argument("last")) for part in parts]  # type: ignore[attr-defined]
    assert ends == [(10, 12), (12, 13)]


def test_only_equal_calls_share_a_unit() -> None:
    work = Work()
    source = work.add(draw, 3, seed=Seed(1), label="drawn", resources=ONE)
    assert work.add(draw, 3, seed=Seed(1), label="drawn again", resources=ONE) is source
    others = [
        work.add(draw, 4, seed=Seed(1), label="", resources=ONE),
        work.add(draw, 3, seed=Seed(2), label="", resources=ONE),
        work.add(draw, 3, seed=Seed(1), label="", resources=replace(ONE, cpus=2)),
        work.add(draw, 3, seed=Seed(1), label="", resources=ONE, after=(source.key,)),
        work.add(total, (source,), label="", resources=ONE),
    ]
    assert len({unit.key for unit in (source, *others)}) == 6


def test_invalid_units_are_refused() -> None:
    def local() -> Numbers:
        return Numbers(np.zeros(1))

    with pytest.raises(InputError, match="module level"):
        unit(local)
    with pytest.raises(InputError, match="@unit"):
        Work().add(value, label="", resources=ONE)
    with pytest.raises(
        InputError, match="the arguments of draw must match its signature: missing a required argument: 'seed'"
    ):
        Work().add(draw, 3, label="", resources=ONE)


def test_code_is_read_once_for_all_units(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[str] = []
    read_module = fingerprint.read_module

    def recorded(name: str) -> fingerprint.ModuleSources:
        modules.append(name)
        return read_module(name)

    monkeypatch.setattr(fingerprint, "read_module", recorded)
    work = Work()
    work.add(total, KeepsEverything(), label="", resources=ONE)
    first = list(modules)
    for number in range(50):
        work.add(total, KeepsEverything(float(number + 2)), label="", resources=ONE)
    assert "tests" in first
    assert modules == first
