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
from dpaudit.engine.attacks.stated_law import MAX_LOG_ODDS
from dpaudit.engine.games.search import EPSILON_LEVELS
from dpaudit.mechanisms.adapters.other_python.calls import call_in_process
from dpaudit.mechanisms.queries.row_function import CallLimits, CallOutcome

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
        arguments = {"loc": 0.0, "scale": 1.0} | dict(zip(names, args, strict=False)) | named
        shape = np.shape(values)
        with np.errstate(all="ignore"):
            if law == "geometric":
                scale = np.broadcast_to(-1 / np.log1p(-np.asarray(arguments["p"], float)), shape).ravel()
                noise = np.array(values, np.float64).ravel()
            else:
                loc = np.broadcast_to(np.asarray(arguments["loc"], float), shape).ravel()
                scale = np.broadcast_to(np.asarray(arguments["scale"], float), shape).ravel()
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
            noises.widened = int(rng.bit_generator.seed_seq.generate_state(2)[1]) % count
        return mechanism.function(rows, RecordingGenerator(rng.bit_generator, noises), **keywords)

    def call(chosen: Sequence[int]) -> list[CallOutcome]:
        return call_in_process(run, table, chosen, form=mechanism.form, settings=settings, limits=limits)

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
        for first_world, second_world in ((on_d_prime, on_d), (on_d, on_d_prime)):
            share_one, share_zero = _shares(first_world[chosen::2]), _shares(second_world[chosen::2])
            for epsilon in epsilons:
                factor, delta = math.exp(epsilon), claim.curve.delta(epsilon)
                event = {ending for ending, share in share_one.items() if share > factor * share_zero.get(ending, 0.0)}
                first, first_error = _weight_of(first_world[weighed::2], event)
                second, second_error = _weight_of(second_world[weighed::2], event)
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


@dataclass(frozen=True, eq=False)
class RecordedLaw:
    """The law of a result's numbers on two tables: in each, a query plus independent noise that was recorded.

    Attributes:
        width: Number of numbers of the result.
        columns: Positions of the numbers whose law is known, shape (k,).
        laws: Law of the noise of each: "laplace", "normal", or "geometric" for a difference of two geometric noises.
        queries: The queries on D and on D', shape (2, k).
        scales: Scales of the noise on D and on D', shape (2, k).
    """

    width: int
    columns: NDArray[np.int64]
    laws: NDArray[np.str_]
    queries: Vector
    scales: Vector

    def log_odds(self, summaries: Vector) -> Vector:
        """Return the log-odds of D' in nats, shape (n, width) to (n,); 0 for results of another width."""
        if summaries.shape[1] != self.width:
            return np.zeros(len(summaries))
        numbers = np.asarray(summaries, np.float64)[:, self.columns]
        density = [np.zeros(len(numbers)), np.zeros(len(numbers))]
        for side in (0, 1):
            noise = np.abs(numbers - self.queries[side]) / self.scales[side]
            # The probability of two-sided geometric noise is tanh(1 / (2 scale)) exp(-distance / scale).
            at_zero = np.where(self.laws == "geometric", np.tanh(0.5 / self.scales[side]), 1 / self.scales[side])
            terms = np.where(self.laws == "normal", noise**2 / 2, noise)
            density[side] = (np.log(at_zero) - terms).sum(axis=1)
        odds = np.clip(density[1] - density[0], -MAX_LOG_ODDS, MAX_LOG_ODDS)
        return np.asarray(np.round(odds, 6))  # equal odds must not be ordered by rounding errors


@dataclass(frozen=True)
class _Noise:
    """The noise of one number."""

    law: str
    scale: float
    query: float
    sources: frozenset[int]  # positions of the recorded noises of which it is a sum


def recorded_law(on_d: Sequence[RecordedCall], on_d_prime: Sequence[RecordedCall]) -> RecordedLaw | None:
    """Return the law of the numbers from recorded calls on both tables; None if no number has a known one.

    A number whose noise is part of that of an earlier number is left out.
    """
    sides = [_noises_of_numbers(calls) for calls in (on_d, on_d_prime)]
    used: set[int] = set()
    identified = []
    for place, (first, second) in enumerate(zip(*sides, strict=False)):
        if first is None or second is None or first.law != second.law or used & (first.sources | second.sources):
            continue
        used |= first.sources | second.sources
        identified.append((place, first, second))
    if not identified or len(sides[0]) != len(sides[1]):
        return None
    return RecordedLaw(
        len(sides[0]),
        np.array([place for place, _, _ in identified], np.int64),
        np.array([first.law for _, first, _ in identified], np.str_),
        np.array([[first.query for _, first, _ in identified], [second.query for _, _, second in identified]]),
        np.array([[first.scale for _, first, _ in identified], [second.scale for _, _, second in identified]]),
    )


def _noises_of_numbers(calls: Sequence[RecordedCall]) -> list[_Noise | None]:
    """Return the noise of each number of the most common form of the result; None where it is not known."""
    forms = [(call.ending, len(call.numbers), tuple(call.noises.laws)) for call in calls]
    usual = max(forms, key=forms.count)
    alike = [call for call, form in zip(calls, forms, strict=True) if form == usual]
    if len(alike) < len(calls) / 2 or not usual[1] or not usual[2]:
        return []
    laws = usual[2]
    numbers = np.array([call.numbers for call in alike])
    scales = np.array([call.noises.scales for call in alike])
    noises = np.array([call.noises.values for call in alike]) * np.where(np.array(laws) == "geometric", 1.0, scales)
    steady = np.ptp(scales, axis=0) <= 1e-9 * scales.max(axis=0)
    noises = np.where(steady & np.isfinite(noises).all(axis=0), noises, 0.0)
    return [_noise_of(column, noises, laws, scales[0]) for column in numbers.T]


def _noise_of(column: Vector, noises: Vector, laws: Sequence[str], scales: Vector) -> _Noise | None:
    """Return the noise of one number if it is a multiple of one recorded noise, or a difference of two geometric ones.

    A number that is rounded to whole ones may differ from its query and noise by half.
    """
    centred = noises - noises.mean(axis=0)
    length = np.sqrt((centred**2).sum(axis=0))
    units = np.divide(centred, length, out=np.zeros_like(centred), where=length > 0)
    tolerance = 1e-6 * np.ptp(column) + (0.51 if not (column % 1).any() else 0.0)
    residual, sources = column - column.mean(), list[int]()
    for _ in range(2):
        sources.append(int(np.abs(residual @ units).argmax()))
        design = np.column_stack([noises[:, sources], np.ones(len(column))])
        solution = np.linalg.lstsq(design, column, rcond=None)[0]
        residual = column - design @ solution
        if np.abs(residual).max() <= tolerance:
            break
    else:
        return None
    slopes, kinds = solution[:-1], {laws[source] for source in sources}
    scale, query = float(np.abs(slopes[0]) * scales[sources[0]]), float(solution[-1])
    sources_of_noise = frozenset(sources)
    if len(sources) == 1 and kinds <= {"laplace", "normal"} and scale > 0:
        return _Noise(laws[sources[0]], scale, query, sources_of_noise)
    opposite = len(sources) == 2 and np.allclose(np.abs(slopes), 1.0, atol=1e-6) and abs(slopes.sum()) < 1e-6
    if opposite and kinds == {"geometric"} and np.ptp(scales[sources]) <= 1e-9 * scale:
        return _Noise("geometric", scale, float(round(query)), sources_of_noise)
    return None
