"""Parts of a training that its observed steps point to: hints after a verdict, and no part of it.

From the noise without canaries, in units of the stated deviation: its size overall, by process, step, tensor and
weight, and its correlation over steps and over weights. From the canaries: how much of one joined its step, and how
much came again in later steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.steps.directions import Directions
from dpaudit.engine.games.steps.guesses import LAGS, NoiseModel

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LOW, USUAL = 0.7, 0.85
"""Share of the stated deviation below which noise counts as too small in some places, and from which in no place."""
NONE, GAP = 0.02, 0.1
"""Share of the stated deviation below which there is no noise, and smallest step between small and usual noise."""
CORRELATED = 0.1
"""Correlation from which noise is not independent."""
DEVIATIONS, DIFFERENCE = 5.0, 0.2
"""Standard errors, and share, by which the effect of a canary must differ from the claimed one."""
FEWEST_STEPS, FEWEST_LOW = 12, 0.02
"""Steps from which the noise of each weight is compared, and smallest share of steps or weights that is reported."""


class Part(StrEnum):
    """Part of a training that may be wrong."""

    CLIP = "clip"
    SIZE = "noise size"
    FORM = "noise form"
    OUTSIDE = "parameters outside of the noised ones"
    SAMPLING = "sampling"
    ACCOUNTING = "accounting"


@dataclass(frozen=True)
class Suspect:
    """A part of a training that may be wrong, with what was measured."""

    part: Part
    measured: str

    def __str__(self) -> str:
        return f"{self.part}: {self.measured}"


def suspects(
    model: NoiseModel, names: Sequence[str], *, rows: bool, by_process: Floats | None = None
) -> tuple[Suspect, ...]:
    """Return what the observed steps point to, the clip first.

    Canaries join as `rows` before the clip or not. `names` are those of tensors.
    `by_process` is the share of the stated deviation in each process that has a part of the weights, else None.
    """
    if not len(model.noise):
        return ()
    scaled = model.noise / model.deviation
    form = _form(scaled, model)
    sizes = _sizes(scaled, model.directions, names, by_weight=not form)
    if by_process is not None and (low := by_process < LOW).any() and not low.all():
        numbers = ", ".join(map(str, np.flatnonzero(low)))
        worst = float(by_process[low].mean())
        sizes = [Suspect(Part.SIZE, f"the noise of process {numbers} has {worst:.2g} of the stated deviation")]
    return (*_clip(model, rows=rows), *sizes, *form)


def _clip(model: NoiseModel, *, rows: bool) -> list[Suspect]:
    claimed, error = model.claimed_effect, model.deviation / math.sqrt(model.effect_counts[0])
    least = max(DEVIATIONS * error, DIFFERENCE * claimed)
    share, later, sentences = model.effect / claimed, model.effects[1:] / claimed, []
    if model.effect > claimed + least and rows:
        sentences.append(f"a row far beyond the clip joined with {share:.2g} clips, so the clip does not bind")
    elif model.effect > claimed + least:
        sentences.append(f"a canary of one clip was observed as {share:.2g} clips: check `clip` and `divisor`")
    if later.max() * claimed > least:
        listed = ", ".join(f"{share:.2g}" for share in later)
        sentences.append(f"a canary comes again in the next steps ({listed} clips), as by momentum before the noise")
    return [Suspect(Part.CLIP, sentence) for sentence in sentences]


def _sizes(scaled: Floats, directions: Directions, names: Sequence[str], *, by_weight: bool) -> list[Suspect]:
    """Return in which steps, tensors or weights the noise is too small; overall if in all of them."""
    by_step = _root_mean_square(scaled, 1)
    low = by_step < LOW
    if FEWEST_LOW < low.mean() < 1:
        if by_step[~low].mean() >= USUAL and by_step[~low].min() > by_step[low].max() + GAP:
            return [_too_small(_listed_steps(low), float(by_step[low].mean()))]
        quarter = max(1, len(by_step) // 4)
        first, last = by_step[:quarter].mean(), by_step[-quarter:].mean()
        if max(first, last) > 1.5 * min(first, last):
            changes = f"changes from {first:.2g} to {last:.2g} of the stated deviation during the training"
            return [Suspect(Part.SIZE, f"the noise {changes}")]
    tensor = directions.tensor.ravel()
    counts = np.bincount(tensor, minlength=len(names))
    by_tensor = np.sqrt(np.bincount(tensor, (scaled**2).mean(0), len(names)) / np.maximum(counts, 1))
    low, others = (by_tensor < LOW) & (counts > 0), (by_tensor >= LOW) & (counts > 0)
    if low.any() and others.any() and by_tensor[others].mean() >= USUAL:
        listed = ", ".join(names[number] for number in np.flatnonzero(low)[:3])
        more = f" and {low.sum() - 3} more" if low.sum() > 3 else ""
        return [_too_small(f"{listed}{more}", float(by_tensor[low].mean()), part=Part.OUTSIDE)]
    single, of_weight = directions.kind.ravel() % 3 == 0, _root_mean_square(scaled, 0)
    low = (of_weight < LOW / 2) & single
    share = low.sum() / max(1, single.sum())
    if (
        by_weight
        and len(scaled) >= FEWEST_STEPS
        and FEWEST_LOW < share < 1
        and of_weight[~low & single].mean() >= USUAL
    ):
        where = ", ".join(dict.fromkeys(names[number] for number in tensor[low]))
        size = float(of_weight[low].mean())
        return [_too_small(f"{100 * share:.0f} % of the weights of {where}", size, part=Part.OUTSIDE)]
    overall = float(_root_mean_square(scaled.ravel(), 0))
    return [_too_small("all weights in all steps", overall)] if overall < 0.9 else []


def _root_mean_square(values: Floats, axis: int) -> Floats:
    return np.asarray(np.sqrt((values**2).mean(axis)))


def _too_small(where: str, share: float, *, part: Part = Part.SIZE) -> Suspect:
    """Return the suspect for noise that is too small; `part` is that for no noise at all."""
    if share < NONE:
        return Suspect(part, f"no noise on {where}")
    return Suspect(Part.SIZE, f"the noise of {where} has {share:.2g} of the stated deviation")


def _listed_steps(low: Flags) -> str:
    """Return which steps are marked, in words."""
    steps, total = np.flatnonzero(low), low.size
    if steps[-1] - steps[0] + 1 == steps.size and (steps[0] == 0 or steps[-1] == total - 1):
        return f"the {'first' if steps[0] == 0 else 'last'} {steps.size} steps"
    gaps = np.unique(np.diff(steps))
    if gaps.size == 1 and steps.size >= total // gaps[0] - 1:
        return f"one of every {gaps[0]} steps"
    return f"{steps.size} of {total} steps"


def _form(scaled: Floats, model: NoiseModel) -> list[Suspect]:
    """Return the correlation of the noise with that of other steps, and of neighbouring weights."""
    sentences = []
    since = np.array([steps for steps in model.repeats if steps], np.int64)
    counts = {period: int((since % period == 0).sum()) for period in set(since.tolist())}
    period = max(counts, key=lambda each: counts[each] - since.size / each, default=0)  # beyond chance
    if counts and counts[period] - since.size / period > len(model.repeats) / 5:
        steps = f"{counts[period]} of {len(model.repeats)} steps"
        sentences.append(f"{steps} repeat the noise of {period} steps before, or of a multiple of that")
    power = (scaled**2).mean() + 1e-30
    lags = [lag for lag in range(1, LAGS + 1) if lag < len(scaled)]
    by_lag = [float((scaled[lag:] * scaled[:-lag]).mean() / power) for lag in lags]
    if not sentences and by_lag and (strongest := max(map(abs, by_lag))) > CORRELATED:
        lag, strongest = next(pair for pair in zip(lags, by_lag, strict=True) if abs(pair[1]) > 0.9 * strongest)
        steps = "the step" if lag == 1 else f"{lag} steps"
        sentences.append(f"the noise of a step is correlated with that of {steps} before ({strongest:.2f})")
    of_kind = [(scaled[:, model.directions.kind.ravel() % 3 == kind] ** 2) for kind in (1, 2)]
    if all(values.size for values in of_kind):
        difference, total = (float(values.mean()) for values in of_kind)
        correlation = (total - difference) / (total + difference + 1e-30)
        if abs(correlation) > CORRELATED:
            sentences.append(f"the noise of neighbouring weights is correlated ({correlation:.2f})")
    return [Suspect(Part.FORM, sentence) for sentence in sentences]
