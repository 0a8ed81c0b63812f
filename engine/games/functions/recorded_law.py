"""Calls whose random draws are recorded, so that the law of their noise is known.

Two uses, both in the search only. A call may draw one of its noises from a wider law: events that are rare become
frequent, and the known ratio of the densities gives their true probability. And where every number of a result is a
query plus recorded noise, the likelihood ratio of two tables is known, and no classifier has to learn it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.engine.games.neighbours.world_scores import EPSILON_LEVELS
from dpaudit.mechanisms.adapters.other_python.calls import call_in_process
from dpaudit.mechanisms.queries.outcome import CallOutcome
from dpaudit.mechanisms.queries.row_function import CallLimits

Vector = NDArray[np.float64]

MAX_NOISES = 4_096
"""Largest number of noises of a call that are recorded."""
FIRST_SHARE = 0.6
"""Share of the calls that weigh all pairs; the others weigh the best one again."""
WIDENING = 3.0
"""Factor on the scale of a noise that is drawn from a wider law."""
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "laplace": ("loc", "scale"),
    "normal": ("loc", "scale"),
    "gumbel": ("loc", "scale"),
    "logistic": ("loc", "scale"),
    "exponential": ("scale",),
    "standard_normal": (),
    "standard_exponential": (),
    "geometric": ("p",),
}
"""Methods of a generator whose draws are recorded, with the arguments before the shape."""
_LOG_DENSITY: Mapping[str, Callable[[Vector], Vector]] = {
    "laplace": lambda z: -np.abs(z) - math.log(2),
    "normal": lambda z: -(z**2) / 2 - math.log(2 * math.pi) / 2,
    "gumbel": lambda z: -z - np.exp(-z),
    "logistic": lambda z: -np.abs(z) - 2 * np.log1p(np.exp(-np.abs(z))),
    "exponential": lambda z: -z,
}
"""Log densities of the noises at location 0 and scale 1."""


@dataclass
class Noises:
    """The noises that a call drew, in order.

    Attributes:
        widened: Position of the noise that is drawn from a wider law; None for none.
        laws: Law of each noise: "laplace", "normal", "gumbel", "logistic", "exponential" or "geometric".
        scales: Scale of each noise; of a geometric one -1 / log(1 - p).
        values: Each noise without its location, in scales; a geometric one in whole steps.
        log_weights: Log of the density over that of the wider law, at each value.
    """

    widened: int | None = None
    laws: list[str] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    log_weights: list[float] = field(default_factory=list)

    @property
    def weight(self) -> float:
        """Probability over that of drawing one of the noises, chosen at random, from the wider law."""
        return 1 / float(np.mean(np.exp(-np.array(self.log_weights)))) if self.log_weights else 1.0


class RecordingGenerator(np.random.Generator):
    """A generator that records its noises, and draws one of them from a wider law if that is asked."""

    def __init__(self, bits: Any, noises: Noises) -> None:
        super().__init__(bits)
        self._noises = noises

    def spawn(self, n_children: int) -> list[np.random.Generator]:
        return [RecordingGenerator(bits, self._noises) for bits in self.bit_generator.spawn(n_children)]


def _recording(method: str, names: Sequence[str]) -> Callable[..., Any]:
    draw = getattr(np.random.Generator, method)
    law = method.removeprefix("standard_")

    @functools.wraps(draw)
    def record(self: RecordingGenerator, *args: Any, **named: Any) -> Any:
        values = draw(self, *args, **named)
        noises = self._noises
        if len(noises.laws) >= MAX_NOISES:
            return values
        given = {"loc": 0.0, "scale": 1.0} | dict(zip(names, args, strict=False)) | named
        shape = np.shape(values)
        with np.errstate(all="ignore"):
            if law == "geometric":
                scale = np.broadcast_to(-1 / np.log1p(-np.asarray(given["p"], float)), shape).ravel()
                noise = np.array(values, np.float64).ravel()
            else:
                loc = np.broadcast_to(np.asarray(given["loc"], float), shape).ravel()
                scale = np.broadcast_to(np.asarray(given["scale"], float), shape).ravel()
                noise = (np.asarray(values, float).ravel() - loc) / scale
        place = None if noises.widened is None else noises.widened - len(noises.laws)
        if place is not None and 0 <= place < len(noise) and scale[place] > 0:
            if law == "geometric":
                noise[place] = np.random.Generator.geometric(self, -math.expm1(-1 / (WIDENING * scale[place])))
                changed: Any = noise.astype(np.int64).reshape(shape)
            else:
                noise[place] *= WIDENING
                changed = (loc + scale * noise).reshape(shape)
            values = changed if shape else changed.item()
        noises.laws += [law] * len(noise)
        noises.scales += scale.tolist()
        noises.values += noise.tolist()
        noises.log_weights += _log_weights(law, scale, noise).tolist()
        return values

    return record


for _method, _names in ARGUMENTS.items():
    setattr(RecordingGenerator, _method, _recording(_method, _names))


def _log_weights(law: str, scale: Vector, noise: Vector) -> Vector:
    """Return the log of a density over that of the law with `WIDENING` times the scale."""
    with np.errstate(all="ignore"):
        if law == "geometric":
            wide = WIDENING * scale
            ratio = np.log(np.expm1(-1 / scale) / np.expm1(-1 / wide)) - (noise - 1) * (1 / scale - 1 / wide)
        else:
            density = _LOG_DENSITY[law]
            ratio = density(noise) - density(noise / WIDENING) + math.log(WIDENING)
    return np.nan_to_num(ratio, nan=0.0, posinf=0.0, neginf=-700.0)


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """The outcome of a call without low bits, and its noises."""

    ending: str
    numbers: Vector
    noises: Noises


def recorded_calls(
    mechanism: Any,
    table: pa.Table,
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    limits: CallLimits,
    *,
    widen: bool,
) -> list[RecordedCall]:
    """Call a function of this process once for each seed.

    With `widen`, one noise of each call, chosen by the seed, is drawn from a wider law.
    """
    recorded: list[Noises] = []
    count = 0

    def run(rows: Any, rng: np.random.Generator, **keywords: Any) -> Any:
        noises = Noises()
        recorded.append(noises)
        if widen and count:
            noises.widened = int(rng.bit_generator.seed_seq.generate_state(2)[1]) % count  # type: ignore[attr-defined]
        return mechanism.function(rows, RecordingGenerator(rng.bit_generator, noises), **keywords)

    def call(chosen: Sequence[int]) -> list[CallOutcome]:
        return call_in_process(
            run,
            table,
            chosen,
            form=mechanism.form,
            settings=settings,
            limit_s=limits.limit_s,
            time_limit=limits.time_limit,
            from_outside=limits.from_outside,
        )

    if widen:
        call(seeds[:1])
        count = len(recorded.pop().laws)
    outcomes = call(seeds)
    return [
        RecordedCall(outcome.ending, outcome.numbers[: len(outcome.numbers) - outcome.low_bits], noises)
        for outcome, noises in zip(outcomes, recorded, strict=True)
    ]


def rarest_excess(
    replays: Callable[[pa.Table, Sequence[int]], Sequence[RecordedCall]],
    tables: Sequence[tuple[pa.Table, pa.Table]],
    claim: Claim,
    trials: int,
    *,
    calls: int,
    rng: np.random.Generator,
) -> tuple[int, float]:
    """Return the position of the pair whose forms of the result exceed a claim most clearly, and by how much.

    All pairs get the same seeds, the best one as many others as `calls` leave. The excess is in standard deviations of
    `trials` fresh trials and of this estimate.

    Args:
        replays: Function that calls the audited one on a table, once for each seed, with a noise from a wider law.
    """

    def measured(pair: tuple[pa.Table, pa.Table], count: int) -> float:
        seeds = rng.integers(0, 2**31, count).tolist()
        return excess_of_forms(claim, replays(pair[0], seeds), replays(pair[1], seeds), trials)

    first = [measured(pair, int(calls * FIRST_SHARE) // (2 * len(tables))) for pair in tables]
    best = int(np.argmax(first))
    return best, measured(tables[best], int(calls * (1 - FIRST_SHARE)) // 2) if first[best] > 0 else 0.0


def excess_of_forms(
    claim: Claim, on_d: Sequence[RecordedCall], on_d_prime: Sequence[RecordedCall], trials: int
) -> float:
    """Return the standard deviations by which the form of the result exceeds a claim in as many fresh trials.

    Events are sets of endings that are more probable on one table than the claim allows; each has a half of the calls
    on which it is chosen.
    """
    excesses = []
    epsilons = sorted({*EPSILON_LEVELS, *([claim.epsilon] if math.isfinite(claim.epsilon) else [])})
    for chosen, weighed in ((0, 1), (1, 0)):
        for one, zero in ((on_d_prime, on_d), (on_d, on_d_prime)):
            share_one, share_zero = _shares(one[chosen::2]), _shares(zero[chosen::2])
            for epsilon in epsilons:
                factor, delta = math.exp(epsilon), claim.curve.delta(epsilon)
                event = {ending for ending, share in share_one.items() if share > factor * share_zero.get(ending, 0.0)}
                first, first_error = _weight_of(one[weighed::2], event)
                second, second_error = _weight_of(zero[weighed::2], event)
                fresh = 2 * (first * (1 - first) + factor**2 * second * (1 - second)) / trials
                error = first_error**2 + factor**2 * second_error**2
                excesses.append((first - factor * second - delta) / math.sqrt(max(fresh + error, 1e-9)))
    return max(excesses)


def _shares(calls: Sequence[RecordedCall]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for call in calls:
        shares[call.ending] = shares.get(call.ending, 0.0) + call.noises.weight / len(calls)
    return shares


def _weight_of(calls: Sequence[RecordedCall], event: set[str]) -> tuple[float, float]:
    """Return the estimated probability of an event, at most 1, and its standard error."""
    weights = np.array([call.noises.weight if call.ending in event else 0.0 for call in calls])
    return min(float(weights.mean()), 1.0), float(weights.std() / math.sqrt(len(weights)))
