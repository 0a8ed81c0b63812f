"""Tests of the form of noise: false positives as rare as stated, and planted irregularities are detected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpaudit import Audit, AuditSpec, RunOptions, Verdict, audit
from dpaudit.engine.games.steps.noise import ERROR, LOOKS, Floats, NoiseForm, form_of
from tests.bank.loops import BANK


def gaussian(rng: np.random.Generator, steps: int, weights: int) -> Floats:
    return rng.normal(0, 1.3, (steps, weights))


def test_false_positives_are_rare() -> None:
    """More than 6 false positives in 600 have probability 1e-5 at most; each p-value is uniform or larger."""
    rng = np.random.default_rng(0)
    p_values = [form_of(gaussian(rng, *shape), 1.3) for shape in ((10, 40), (300, 50), (60, 600)) for _ in range(200)]
    assert sum(bool(NoiseForm(each, 1.3).odd) for each in p_values) <= 6
    below = np.nanmean(np.array(p_values) < 0.1, axis=0)
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
    ("noise_law", "check"),
    [
        (recurring, "likeness of steps"),
        (negated, "likeness of steps"),
        (shared_by_weights, "likeness of weights"),
        (of_few_directions, "its directions"),
        (weaker_in_a_layer, "its size by weight"),
        (weaker_half_way, "its size by step"),
    ],
)
def test_irregular_noise_is_detected(noise_law, check) -> None:  # type: ignore[no-untyped-def]
    """The probability of missing an irregularity is below 1e-9."""
    form = NoiseForm(form_of(noise_law(np.random.default_rng(1)), 1.3), 1.3)
    assert form.p_values[LOOKS.index(check)] < ERROR / len(LOOKS)
    assert check in form.line
    assert "clipped in another way than stated" in form.line


def test_too_few_steps_are_not_tested() -> None:
    form = NoiseForm(form_of(np.zeros((3, 50)), 1.3), 1.3)
    assert (form.odd, form.line) == ((), "")


@pytest.mark.parametrize("odd", [False, True])
def test_an_audit_reports_the_form_of_the_noise(odd: bool, tmp_path: Path) -> None:
    """The training loop shows its batches; the noise of two steps adds up, which one training hardly tells."""
    mechanism = BANK["moving average of noise"].defect if odd else BANK["noise recurs every 50 steps"].twin
    assert mechanism is not None
    noise_audit = Audit(mechanism(), {"name": "breast-cancer"}, game="dp-sgd-steps", proxy=None)
    spec = AuditSpec((noise_audit,), run=RunOptions(runner="in-process", figures=False))
    (result,) = audit(spec, output=tmp_path, quiet=True).results
    assert result.noise.line
    assert bool(result.noise.odd) is odd
    assert result.noise.line in result.text(verbose=True)
    assert (result.noise.line in str(result)) is odd
    assert result.answer.line("stated-noise") == (result.noise.line if odd else "")
    assert (result.answer.rule == "stated-noise") is odd
    assert (result.verdict is Verdict.UNDECIDED) is odd
