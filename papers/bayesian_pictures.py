"""Posteriors over two error rates: Figures 1, 2, 3 and 7 of Zanella-Beguelin et al. (2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from scipy import stats

from dpaudit.claims import ApproximateDP, GaussianDP, PrivacyCurve, SubsampledGaussian
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.confusion import (
    epsilon_interval,
    epsilon_posterior_cdf,
    epsilon_posterior_pdf,
)
from dpaudit.estimators.two_world.two_sample import Band, roc_corners
from dpaudit.registry import register
from papers.bayesian_table_2 import METHODS, worst_case_counts
from papers.reproduction import Options, Reproduction

Floats = NDArray[np.float64]

TRIALS = 1_024
"""Simulated trials behind the reported counts, as in the paper's Table 2. Half as many others choose the threshold."""
ACCOUNTED, DELTA = 8.0, 1e-5
STEPS, RATE = 100, 0.1
"""Steps and sampling rate of the DP-SGD run in the figures; `_noise` searches its noise multiplier for epsilon 8."""
GRID: Floats = np.linspace(0.0, 1.0, 401)


@dataclass(frozen=True)
class Counts:
    """Confusion counts of one attack."""

    tp: int
    fp: int
    tn: int
    fn: int

    def interval(self, delta: float, confidence: float, method: str) -> tuple[float, float]:
        """Return both ends of the interval on epsilon, in nats."""
        ends = epsilon_interval(self.tp, self.fp, self.tn, self.fn, delta=delta, confidence=confidence, method=method)
        return float(ends.lower), float(ends.upper)

    def posterior(self, epsilon: Floats | float, delta: float, *, density: bool = False) -> Floats:
        """Return the posterior probability of R(epsilon, delta), or its derivative."""
        posterior = epsilon_posterior_pdf if density else epsilon_posterior_cdf
        return np.asarray(posterior(epsilon, self.tp, self.fp, self.tn, self.fn, delta=delta), dtype=np.float64)

    @property
    def laws(self) -> tuple[Any, Any]:
        """Posteriors of the miss rate and of the false-alarm rate, with Jeffreys priors."""
        return stats.beta(self.fn + 0.5, self.tp + 0.5), stats.beta(self.fp + 0.5, self.tn + 0.5)


EXAMPLE, EXAMPLE_DELTA = Counts(tp=65, fp=25, tn=75, fn=35), 0.05
"""The example of the paper's section 4: 200 trials."""


@register("reproduction", "bayesian figure-1", source="Zanella-Beguelin et al. (2023), arXiv:2206.05199, Figure 1")
def figure_1(options: Options) -> Reproduction:
    """The posterior of epsilon against the accountant's bound: DP-SGD, simulated or with `--data` Table 2's images."""
    if options.data is None:
        claimed = SubsampledGaussian(noise_multiplier=_noise(), sample_rate=RATE, steps=STEPS)
        counts, trained = _attack_counts(claimed, options.seed), f"simulated sums of dot products of {claimed}"
    else:
        counts, trained = Counts(*worst_case_counts(options)), "models of Table 2 at its threshold as published"
    epsilons = np.linspace(0.005, 1.15 * ACCOUNTED, 600)
    density = counts.posterior(epsilons, DELTA, density=True)
    intervals = {method: counts.interval(DELTA, 0.9, method) for method in METHODS}
    above = 1 - float(counts.posterior(ACCOUNTED, DELTA))
    lines = [
        f"DP-SGD with an accountant's epsilon of {ACCOUNTED:g} at delta {DELTA:g}; {TRIALS:,} {trained}: "
        f"tp {counts.tp}, fp {counts.fp}, tn {counts.tn}, fn {counts.fn}",
        f"  posterior probability of epsilon > {ACCOUNTED:g}: {above:.2g}; 90 % intervals:",
    ]
    width = intervals["clopper-pearson"][1] - intervals["clopper-pearson"][0]
    for method, (lower, upper) in intervals.items():
        shorter = f"{1 - (upper - lower) / width:.0%} shorter than Clopper-Pearson's" if math.isfinite(width) else ""
        lines.append(f"  {method:<16} ({lower:.3f}, {upper:.3f})  {shorter}".rstrip())
    lines.append(
        "  The Bayesian interval is credible, not confidence; how often it errs: docs/statistics/calibration.md."
    )
    columns = {"epsilon": epsilons, "density": density}
    return options.publish("figure-1", lines, columns, figure=_draw_posterior(epsilons, density, intervals))


def _attack_counts(claimed: SubsampledGaussian, seed: int) -> Counts:
    """Return the counts of the dot-product attack at the best threshold of separate trials."""
    rng = np.random.default_rng(seed)
    chosen, reported = (_canary_scores(claimed.noise_multiplier, n, rng, dot=True) for n in (TRIALS // 2, TRIALS))
    corners = roc_corners(chosen.score, chosen.truth)
    members = int(chosen.truth.sum())
    lower = epsilon_interval(
        corners.true_positives,
        corners.false_positives,
        chosen.truth.size - members - corners.false_positives,
        members - corners.true_positives,
        delta=DELTA,
        confidence=0.9,
        side="lower",
    ).lower
    best = int(np.argmax(lower))
    called = reported.score >= corners.threshold[best]
    tp, fp = int((called & reported.truth).sum()), int((called & ~reported.truth).sum())
    members = int(reported.truth.sum())
    return Counts(tp, fp, TRIALS - members - fp, members - tp)


@register("reproduction", "bayesian figure-2", source="Zanella-Beguelin et al. (2023), arXiv:2206.05199, Figure 2")
def figure_2(options: Options) -> Reproduction:
    """The privacy region of one (epsilon, delta), and the smaller region of a whole claimed curve."""
    claimed = SubsampledGaussian(noise_multiplier=_noise(), sample_rate=RATE, steps=STEPS)
    curves: dict[str, PrivacyCurve] = {
        "one point": ApproximateDP(claimed.epsilon(DELTA), DELTA),
        "dp-sgd": claimed,
        "gaussian": _gaussian_at(claimed.epsilon(DELTA)),
    }
    alarms = np.concatenate([np.geomspace(1e-6, 1e-3, 60), GRID[1:]])
    table = {"false alarms": alarms}
    table |= {name: np.array([curve.miss_rate(float(alarm)) for alarm in alarms]) for name, curve in curves.items()}
    rates, evidence, bound = _half_the_noise(claimed)
    area = {name: 1 - 2 * float(np.trapezoid(table[name], alarms)) for name in curves}
    lines = [
        f"Regions of error rates that a claim of epsilon {claimed.epsilon(DELTA):.3f} at delta {DELTA:g} allows, as a "
        "share of the square:",
        f"  that one point alone              {area['one point']:.3f}",
        f"  the whole curve of that DP-SGD    {area['dp-sgd']:.3f}",
        f"  a Gaussian with that one point    {area['gaussian']:.3f}",
        "DP-SGD with half of that noise, 1,024 simulated trials (dotted: what the band still allows at 95 %):",
        f"  the bound at delta {DELTA:g} is {bound:.3f}, below the claim; the curve is crossed: {evidence}",
    ]
    return options.publish("figure-2", lines, table, figure=_draw_regions(table, rates))


@register("reproduction", "bayesian figure-3", source="Zanella-Beguelin et al. (2023), arXiv:2206.05199, Figure 3")
def figure_3(options: Options) -> Reproduction:
    """The joint posterior of both rates against the rectangle of two intervals, for the paper's example."""
    joint = EXAMPLE.interval(EXAMPLE_DELTA, 0.95, "bayesian")
    corners = EXAMPLE.interval(EXAMPLE_DELTA, 0.95, "jeffreys")
    rectangle = _rectangle(EXAMPLE, 0.025)
    masses = {
        "the rectangle": math.prod(
            float(law.cdf(high) - law.cdf(low)) for law, (low, high) in zip(EXAMPLE.laws, rectangle, strict=True)
        ),
        "the regions around the rectangle": _mass(EXAMPLE, corners, EXAMPLE_DELTA),
        "the regions of the Bayesian interval": _mass(EXAMPLE, joint, EXAMPLE_DELTA),
    }
    figure, axes = style.canvas(5.6, 5.0)
    _draw_joint(axes, EXAMPLE, EXAMPLE_DELTA, joint)
    for epsilon in corners:
        _draw_boundary(axes, epsilon, EXAMPLE_DELTA, palette.OTHER, "--")
    (miss_low, miss_high), (low, high) = rectangle
    axes.add_patch(
        Rectangle((miss_low, low), miss_high - miss_low, high - low, fill=False, color=palette.OTHER, linewidth=1.6)
    )
    axes.plot([], [], color=palette.OTHER, linestyle="--", label="Jeffreys' rectangle and the regions around it")
    axes.set_xlim(0.15, 0.55)
    axes.set_ylim(0.08, 0.53)
    axes.legend(fontsize=8.5, loc="upper right")
    ends = (corners, corners, joint)
    table = {"of": list(masses), "posterior mass": list(masses.values())}
    table |= {side: [float(pair[at]) for pair in ends] for at, side in enumerate(("lower", "upper"))}
    printed = {"the rectangle": 0.963, "the regions around the rectangle": 0.998}
    lines = [
        f"tp 65, fp 25, tn 75, fn 35 at delta {EXAMPLE_DELTA:g}: 95 % Bayesian ({joint[0]:.3f}, {joint[1]:.3f}), "
        f"Jeffreys ({corners[0]:.3f}, {corners[1]:.3f}); the paper (0.522, 1.268) and (0.321, 1.456)",
        *(
            f"  posterior mass of {name}: {mass:.1%}"
            + (f" (the paper {printed[name]:.1%}, Clopper-Pearson's)" if name in printed else "")
            for name, mass in masses.items()
        ),
    ]
    return options.publish("figure-3", lines, table, figure=figure)


@register("reproduction", "bayesian figure-7", source="Zanella-Beguelin et al. (2023), arXiv:2206.05199, Figure 7")
def figure_7(options: Options) -> Reproduction:
    """The joint posterior of both rates after 4, 40, 400 and 4,000 trials of one game with known rates."""
    rng = np.random.default_rng(options.seed)
    missed, alarmed = rng.random(2_000) < 0.35, rng.random(2_000) < 0.25
    sizes = (2, 20, 200, 2_000)
    figure, panels = style.canvases(len(sizes), width=13.0, height=3.7)
    rows: dict[str, list[float]] = {name: [] for name in ("trials", "lower", "upper", "mass")}
    for axes, half in zip(panels, sizes, strict=True):
        fn, fp = int(missed[:half].sum()), int(alarmed[:half].sum())
        counts = Counts(half - fn, fp, half - fp, fn)
        interval = counts.interval(EXAMPLE_DELTA, 0.9, "bayesian")
        _draw_joint(axes, counts, EXAMPLE_DELTA, interval)
        axes.plot(0.35, 0.25, "+", color=palette.INK, markersize=9)
        axes.set_title(f"{2 * half:,} trials: ({interval[0]:.2f}, {interval[1]:.2f})", fontsize=10)
        axes.set_ylabel("")
        values = (2.0 * half, *interval, _mass(counts, interval, EXAMPLE_DELTA))
        for column, value in zip(rows.values(), values, strict=True):
            column.append(value)
    panels[0].set_ylabel("false-alarm rate")
    truth = math.log((1 - EXAMPLE_DELTA - 0.35) / 0.25)
    lines = [f"90 % intervals of epsilon at delta {EXAMPLE_DELTA:g}, one game with rates 35 % and 25 % ({truth:.3f}):"]
    lines += [
        f"  {int(trials):>5,} trials  ({lower:.3f}, {upper:.3f})"
        for trials, lower, upper in zip(rows["trials"], rows["lower"], rows["upper"], strict=True)
    ]
    return options.publish("figure-7", lines, rows, figure=figure)


def _mass(counts: Counts, interval: tuple[float, float], delta: float) -> float:
    """Return the posterior mass between two privacy regions."""
    low, high = (float(counts.posterior(end, delta)) for end in interval)
    return high - low


def _rectangle(counts: Counts, tail: float) -> list[tuple[float, float]]:
    """Return two-sided Jeffreys intervals of the miss and false-alarm rates, each with half of the error `tail`."""
    level = tail / 2
    return [(float(law.ppf(level)), float(law.ppf(1 - level))) for law in counts.laws]


def _gaussian_at(epsilon: float) -> GaussianDP:
    """Return the Gaussian curve through (epsilon, DELTA)."""
    low, high = 1e-3, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if GaussianDP(middle).epsilon(DELTA) < epsilon else (low, middle)
    return GaussianDP(low)


def _noise() -> float:
    """Return the noise multiplier whose accounted epsilon is `ACCOUNTED`, to three digits."""
    low, high = 0.5, 2.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        spent = SubsampledGaussian(noise_multiplier=middle, sample_rate=RATE, steps=STEPS).epsilon(DELTA)
        low, high = (middle, high) if spent > ACCOUNTED else (low, middle)
    return high


def _canary_scores(noise: float, trials: int, rng: np.random.Generator, *, dot: bool = False) -> Scores:
    """Return scores of one canary with norm equal to the clip: the sum of dot products, or the likelihood ratio."""
    truth, score = rng.random(trials) < 0.5, np.zeros(trials)
    for _ in range(STEPS):
        products = rng.normal(0, noise, trials) + (truth & (rng.random(trials) < RATE))
        score += products if dot else np.log1p(-RATE + RATE * np.exp((2 * products - 1) / (2 * noise**2)))
    return Scores(score, truth)


def _half_the_noise(claimed: SubsampledGaussian) -> tuple[tuple[Floats, Floats], str, float]:
    """Return the limits of both error rates under half the noise, their evidence in words, and the bound at DELTA."""
    scores = _canary_scores(claimed.noise_multiplier / 2, TRIALS, np.random.default_rng(7))
    band = Band(delta=DELTA)
    tally = band.tally(scores)
    bound = band.bound([tally])
    (rates,) = band.regions([tally]).rates
    comparison = bound.comparison(claimed)
    return rates, f"claimed epsilon {comparison.claimed:.4g}, observed {comparison.words}", bound.lower


def _draw_posterior(epsilons: Floats, density: Floats, intervals: dict[str, tuple[float, float]]) -> Figure:
    figure, axes = style.canvas(6.4, 4.0)
    axes.fill_between(epsilons, density, color=palette.MEMBER, alpha=0.2, linewidth=0)
    axes.plot(epsilons, density, color=palette.MEMBER, label="posterior density of ε")
    axes.axvline(ACCOUNTED, color=palette.CLAIM, linewidth=1.6, label=f"the accountant's ε = {ACCOUNTED:g}")
    colours = {"bayesian": palette.MEMBER, "jeffreys": palette.CLAIM, "clopper-pearson": palette.OTHER}
    height = float(density.max())
    for row, method in enumerate(("bayesian", "jeffreys", "clopper-pearson"), start=1):
        lower, upper = intervals[method]
        bar_end = min(upper, float(epsilons[-1]))  # an infinite interval runs to the edge of the figure
        axes.plot([lower, bar_end], [-0.09 * row * height] * 2, color=colours[method], linewidth=3.5)
        label_on_the_left = bar_end > 0.8 * epsilons[-1]
        at, side = (lower - 0.1, "right") if label_on_the_left else (bar_end + 0.1, "left")
        axes.text(at, -0.09 * row * height, method, va="center", ha=side, fontsize=8.5, color=colours[method])
    axes.set_xlim(0, float(epsilons[-1]))
    axes.set_ylim(-0.36 * height, 1.08 * height)
    axes.set_yticks([tick for tick in axes.get_yticks() if tick >= 0])
    axes.set_ylim(-0.36 * height, 1.08 * height)
    axes.set_xlabel("ε, nats (bars: 90 % intervals)")
    axes.set_ylabel("density")
    axes.legend(fontsize=8.5)
    return figure


def _draw_regions(table: dict[str, Floats], rates: tuple[Floats, Floats]) -> Figure:
    figure, (whole, corner) = style.canvases(2, width=10.4, height=4.8)
    names = {
        "one point": ("(ε, δ) alone", palette.OTHER),
        "gaussian": ("Gaussian with the same (ε, δ)", "#7c3aed"),
        "dp-sgd": ("the claim's whole curve", palette.CLAIM),
    }
    alarms = table["false alarms"]
    for axes in (whole, corner):
        for name, (label, colour) in names.items():
            axes.plot(alarms, table[name], color=colour, label=label)
        axes.plot(*rates, ":", color=palette.MEMBER, linewidth=1.8, label="half the noise: limits at 95 %")
        axes.set_xlabel("false-alarm rate")
    for name, (_, colour) in names.items():  # attacks that guess the opposite world
        whole.plot(1 - alarms, 1 - table[name], color=colour)
    claimed = table["dp-sgd"]
    whole.fill_between(alarms, claimed, 1 - np.interp(1 - alarms, alarms, claimed), color=palette.CLAIM, alpha=0.1)
    whole.set_ylabel("miss rate")
    whole.set_title("the square of error rates", fontsize=10)
    whole.legend(fontsize=8.5, loc="center")
    corner.set_xscale("log")
    corner.set_xlim(1e-4, 1)
    corner.set_ylim(0, 1)
    corner.set_title("the same, small rates", fontsize=10)
    return figure


def _draw_joint(axes: Axes, counts: Counts, delta: float, interval: tuple[float, float]) -> None:
    """Draw the contours of the joint posterior and the region between the interval's two ends."""
    miss, alarm = (law.pdf(np.clip(GRID, 1e-4, 1 - 1e-4)) for law in counts.laws)
    density = alarm[:, None] * miss[None, :]
    axes.contourf(GRID, GRID, density, levels=np.linspace(0.05, 1, 9) * density.max(), cmap="Oranges", extend="max")
    low, high = interval
    inner = np.array([ApproximateDP(low, delta).miss_rate(float(x)) for x in GRID]) if low > 0 else 1 - GRID
    outer = np.array([ApproximateDP(high, delta).miss_rate(float(x)) for x in GRID])
    axes.fill_between(GRID, outer, np.minimum(inner, 1), color=palette.CLAIM, alpha=0.12, linewidth=0)
    axes.fill_between(
        GRID, 1 - np.minimum(inner, 1)[::-1], 1 - outer[::-1], color=palette.CLAIM, alpha=0.12, linewidth=0
    )
    for epsilon in interval:
        _draw_boundary(axes, epsilon, delta, palette.CLAIM, "-")
    axes.plot([], [], color=palette.CLAIM, label=f"R(ε, {delta:g}) at the Bayesian interval's ends")
    axes.set_xlabel("miss rate")
    axes.set_ylabel("false-alarm rate")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def _draw_boundary(axes: Axes, epsilon: float, delta: float, colour: str, line: str) -> None:
    if epsilon <= 0:
        axes.plot(GRID, np.maximum(0.0, 1 - delta - GRID), color=colour, linestyle=line, linewidth=1.2)
        axes.plot(GRID, np.minimum(1.0, 1 + delta - GRID), color=colour, linestyle=line, linewidth=1.2)
        return
    edge = np.array([ApproximateDP(epsilon, delta).miss_rate(float(x)) for x in GRID])
    axes.plot(GRID, edge, color=colour, linestyle=line, linewidth=1.2)
    axes.plot(1 - GRID, 1 - edge, color=colour, linestyle=line, linewidth=1.2)
