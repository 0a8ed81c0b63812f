"""The form of the noise of steps: said to be odd as seldom as stated, and seen to be odd where it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.bank.loops import BANK
from dpaudit import Audit, AuditSpec, RunOptions, Verdict, audit
from dpaudit.engine.games.steps.step_probes import ERROR, LOOKS, Floats, NoiseForm, form_of


def gaussian(rng: np.random.Generator, steps: int, weights: int) -> Floats:
    return rng.normal(0, 1.3, (steps, weights))


def test_noise_as_stated_is_seldom_said_to_be_another() -> None:
    """Of 600, more than 6 come with probability 1e-5 at most; each p-value is uniform or above."""
    rng = np.random.default_rng(0)
    found = [form_of(gaussian(rng, *shape), 1.3) for shape in ((10, 40), (300, 50), (60, 600)) for _ in range(200)]
    assert sum(bool(NoiseForm(one, 1.3).odd) for one in found) <= 6
    below = np.nanmean(np.array(found) < 0.1, axis=0)
    assert (below < 0.16).all(), dict(zip(LOOKS, below, strict=True))  # 0.16: by chance in 1e-6 of such tests


def recurring(rng: np.random.Generator) -> Floats:
    return np.tile(gaussian(rng, 40, 60), (2, 1))


def negated(rng: np.random.Generator) -> Floats:
    half = gaussian(rng, 40, 60)
    return np.concatenate([half, -half])


def shared_by_weights(rng: np.random.Generator) -> Floats:
    half = gaussian(rng, 80, 30)
    return np.concatenate([half, half], 1)


def of_few_directions(rng: np.random.Generator) -> Floats:
    return np.asarray(gaussian(rng, 80, 10) @ rng.normal(size=(10, 60)) / np.sqrt(10))


def weaker_in_a_layer(rng: np.random.Generator) -> Floats:
    return gaussian(rng, 80, 60) * np.where(np.arange(60) < 10, 0.4, 1.0)


def weaker_half_way(rng: np.random.Generator) -> Floats:
    return gaussian(rng, 80, 60) * np.where(np.arange(80) < 40, 1.0, 0.5)[:, None]


@pytest.mark.parametrize(
    ("made", "look"),
    [
        (recurring, "likeness of steps"),
        (negated, "likeness of steps"),
        (shared_by_weights, "likeness of weights"),
        (of_few_directions, "its directions"),
        (weaker_in_a_layer, "its size by weight"),
        (weaker_half_way, "its size by step"),
    ],
)
def test_odd_noise_is_seen(made, look) -> None:  # type: ignore[no-untyped-def]
    """Each is certain, or missed with probability below 1e-9."""
    form = NoiseForm(form_of(made(np.random.default_rng(1)), 1.3), 1.3)
    assert form.p_values[LOOKS.index(look)] < ERROR / len(LOOKS)
    assert look in form.line
    assert "clipped in another way than stated" in form.line


def test_too_few_steps_tell_nothing() -> None:
    form = NoiseForm(form_of(np.zeros((3, 50)), 1.3), 1.3)
    assert (form.odd, form.line) == ((), "")


@pytest.mark.parametrize("odd", [False, True])
def test_an_audit_says_it_beside_its_verdict(odd: bool, tmp_path: Path) -> None:
    """A loop of one's own shows its batches; noise that recurs every 50 steps."""
    case = BANK["noise recurs every 50 steps"]
    made = case.defect if odd else case.twin
    assert made is not None
    asked = Audit(made(), case.data or {"name": "breast-cancer"}, game="dp-sgd-steps", proxy=None)
    spec = AuditSpec((asked,), run=RunOptions(runner="in-process", figures=False))
    (result,) = audit(spec, output=tmp_path, quiet=True).results
    assert result.noise.line
    assert bool(result.noise.odd) is odd
    assert result.noise.line in result.text(verbose=True)
    assert (result.noise.line in str(result)) is odd
    assert result.answer.line("stated-noise") == (result.noise.line if odd else "")
    assert (result.answer.rule == "stated-noise") is odd
    assert (result.verdict is Verdict.UNDECIDED) is odd
