"""Selections of thresholds: construction from a spec, and their description in words."""

from __future__ import annotations

import pickle

import pytest

from dpaudit.errors import InputError
from dpaudit.estimators.selection import (
    AsPublished,
    Bonferroni,
    Fixed,
    Grid,
    Selection,
    SimultaneousBand,
    Split,
    parse_selection,
)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("fixed:0.01", Fixed(0.01)),
        ("split", Split()),
        ("split:0.3", Split(0.3)),
        ("grid", Grid()),
        ("grid:0.01,0.1,1", Grid((0.01, 0.1, 1.0))),
        ("bonferroni", Bonferroni()),
        ("band", SimultaneousBand()),
        ("band:tails", SimultaneousBand("tails")),
        ("as-published", AsPublished()),
        ({"name": "split", "fraction": 0.25, "seed": 3}, Split(0.25, 3)),
        ({"name": "grid", "points": [0.1, 0.2]}, Grid((0.1, 0.2))),
        (Fixed(0.5), Fixed(0.5)),
    ],
)
def test_a_spec_becomes_its_selection(spec: str, expected: Selection) -> None:
    assert parse_selection(spec) == expected
    assert hash(parse_selection(spec)) == hash(expected)
    assert pickle.loads(pickle.dumps(parse_selection(spec))) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("best", "a selection must be one of fixed, split, grid, bonferroni, band, as-published, got 'best'"),
        ("best:3", "a selection must be one of fixed, split"),
        ("bonferroni:2", "takes no argument"),
        ("grid:a,b", "numbers split by commas"),
        ("fixed", "does not fit"),
        ({"fraction": 0.5}, "a selection needs a name"),
        ({"name": "split", "share": 0.5}, "does not fit the fields"),
        ("split:1.5", "the choosing fraction must be in (0, 1), got 1.5"),
        ("grid:0.5,0.1", "points must be increasing rates in (0, 1]"),
        ("grid:0,0.1", "points must be increasing rates in (0, 1]"),
        ("fixed:nan", "must be a number"),
    ],
)
def test_invalid_selection_in_a_spec_is_refused_in_one_sentence(spec: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_selection(spec)
    assert message in str(refused.value)


def test_every_selection_describes_itself() -> None:
    assert str(Fixed(0.01)) == "0.01, fixed beforehand"
    assert str(Split(0.5, 0)) == "chosen on a separate 0.5 of the samples (seed 0)"
    assert "error shared" in str(Grid())
    assert "error shared over everything" in str(Bonferroni())
    assert "simultaneous" in str(SimultaneousBand())
    assert "uncorrected" in str(AsPublished())


def test_the_sweep_of_the_papers_is_every_percent() -> None:
    assert AsPublished().points[0] == 0.01
    assert AsPublished().points[-1] == 1.0
    assert len(AsPublished().points) == 100
