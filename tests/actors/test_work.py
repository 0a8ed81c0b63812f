"""Work: calls of functions whose results are arguments of others."""

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
    drawn = seed.rng().normal(size=count)
    return Outcome(Numbers(drawn), ("chose nothing",), {"mean": float(drawn.mean())}, ("trial 3 failed",))


@unit
def add_up(parts: tuple[Numbers, ...], more: Numbers | None, data: Any = None) -> Numbers:
    return Numbers(sum((part.values for part in parts), np.zeros(3)) + (0 if more is None else more.values))


@unit
def pieces(number: Numbers, compute: Compute, *, first: int, last: int) -> Iterator[Numbers]:
    for piece in range(first, last):
        yield Numbers(number.values * piece + compute.threads)


@unit
def pieces_told(number: Numbers) -> Outcome[Iterator[Numbers]]:
    return Outcome(iter((number, number)), failures=("one is missing",))


@unit
def total(many: Any) -> Numbers:
    return Numbers(np.array([sum(float(part.values.sum()) for part in many)]))


def run(work: Work) -> dict[str, pa.Table]:
    """Every unit's table, by key."""
    tables: dict[str, pa.Table] = {}
    for planned in work.units.values():
        shared = {name: work.shared[name] for name in planned.shared}
        inputs = Inputs(shared, {key: tables[key] for key in planned.needs})
        tables[planned.key] = planned.task.run(inputs, planned.resources.compute())
    return tables


def value(tables: dict[str, pa.Table], planned: Unit) -> Any:
    assert isinstance(planned.task, Call)
    return value_of(planned, tables[planned.key])


def test_values_go_from_unit_to_unit() -> None:
    work = Work()
    drawn = tuple(work.add(draw, 3, seed=Seed(1).child(part), label=f"part {part}", resources=ONE) for part in range(2))
    both = work.add(add_up, drawn, drawn[0], work.share("target:abc", np.ones(2)), label="sum", resources=ONE)
    assert both.needs == tuple(unit.key for unit in drawn)
    assert both.shared == ("target:abc",)
    tables = run(work)
    one, two = (Seed(1).child(part).rng().normal(size=3) for part in range(2))
    assert value(tables, both).values.tolist() == (one + two + one).tolist()
    said = outcome_metadata(tables[drawn[0].key].schema)
    assert (said.notes, said.failures, said.metrics) == (("chose nothing",), ("trial 3 failed",), {"mean": one.mean()})
    assert outcome_metadata(tables[both.key].schema) == Outcome(None)


def test_a_loop_is_split_and_may_be_inlined() -> None:
    work = Work()
    drawn = work.add(draw, 3, seed=Seed(1), label="drawn", resources=ONE)
    parts = work.split(pieces, 5, 2, drawn, label="pieces", resources=ONE, offset=0)
    assert [(part.label, part.task.argument("last")) for part in parts] == [  # type: ignore[attr-defined]
        ("pieces 1-2", 2),
        ("pieces 3-4", 4),
        ("pieces 5-5", 5),
    ]
    counted = [work.add(total, part, label="counted", resources=ONE) for part in parts]
    without = [work.add(total, inlined(part), label="counted at once", resources=ONE) for part in parts]
    assert [unit.needs for unit in without] == [(drawn.key,)] * 3
    tables = run(work)
    for one, other in zip(counted, without, strict=True):
        assert value(tables, one).values.tolist() == value(tables, other).values.tolist()


def test_what_is_said_beside_several_values_is_kept_wherever_they_are_made() -> None:
    work = Work()
    told = work.add(pieces_told, Numbers(np.ones(3)), label="told", resources=ONE)
    both = [work.add(total, given, label="summed", resources=ONE) for given in (told, inlined(told))]
    tables = run(work)
    assert [value(tables, unit).values.tolist() for unit in both] == [[6.0], [6.0]]
    made_here, made_there = (outcome_metadata(tables[planned.key].schema).failures for planned in reversed(both))
    assert outcome_metadata(tables[told.key].schema).failures == made_here == ("one is missing",)
    assert made_there == ()


def test_a_call_without_a_unit_is_made_where_it_is_needed() -> None:
    """Its units and large inputs are those of the unit that needs it, however deep it is."""
    work = Work()
    drawn = work.add(draw, 3, seed=Seed(1), label="drawn", resources=ONE)
    sum_of = inlined(add_up, (drawn, drawn), None, work.share("target:abc", np.ones(2)))
    again = inlined(add_up, (), sum_of)
    whole = work.add(total, (again, sum_of), label="total", resources=ONE)
    assert (whole.needs, whole.shared, len(work.units)) == ((drawn.key,), ("target:abc",), 2)
    tables = run(work)
    assert value(tables, whole).values.tolist() == pytest.approx([4 * value(tables, drawn).values.sum()])
    with pytest.raises(InputError, match="@unit"):
        inlined(value)


def test_pieces_behind_others_keep_their_number() -> None:
    work = Work()
    drawn = work.add(draw, 3, seed=Seed(1), label="drawn", resources=ONE)
    parts = work.split(pieces, 3, 2, drawn, label="pieces", resources=ONE, offset=10)
    ends = [(part.task.argument("first"), part.task.argument("last")) for part in parts]  # type: ignore[attr-defined]
    assert ends == [(10, 12), (12, 13)]


def test_equal_calls_are_one_unit_and_others_have_other_keys() -> None:
    work = Work()
    one = work.add(draw, 3, seed=Seed(1), label="drawn", resources=ONE)
    assert work.add(draw, 3, seed=Seed(1), label="drawn again", resources=ONE) is one
    others = [
        work.add(draw, 4, seed=Seed(1), label="", resources=ONE),
        work.add(draw, 3, seed=Seed(2), label="", resources=ONE),
        work.add(draw, 3, seed=Seed(1), label="", resources=replace(ONE, cpus=2)),
        work.add(draw, 3, seed=Seed(1), label="", resources=ONE, after=(one.key,)),
        work.add(total, (one,), label="", resources=ONE),
    ]
    assert len({unit.key for unit in (one, *others)}) == 6


def test_what_is_no_unit_is_refused() -> None:
    def inside() -> Numbers:
        return Numbers(np.zeros(1))

    with pytest.raises(InputError, match="module level"):
        unit(inside)
    with pytest.raises(InputError, match="@unit"):
        Work().add(value, label="", resources=ONE)
    with pytest.raises(
        InputError, match="the arguments of draw must match its signature: missing a required argument: 'seed'"
    ):
        Work().add(draw, 3, label="", resources=ONE)


def test_code_is_read_once_however_many_units_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it for each unit took 82 s for 20,000 of them."""
    read: list[str] = []
    content = fingerprint.read_module

    def noted(name: str) -> fingerprint.Sources:
        read.append(name)
        return content(name)

    monkeypatch.setattr(fingerprint, "read_module", noted)
    work = Work()
    work.add(total, KeepsEverything(), label="", resources=ONE)
    first = list(read)
    for number in range(50):
        work.add(total, KeepsEverything(float(number + 2)), label="", resources=ONE)
    assert "tests" in first
    assert read == first
