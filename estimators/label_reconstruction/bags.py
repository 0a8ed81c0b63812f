"""Estimator of label advantages from an attacker's posteriors of single examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_one_of
from dpaudit.estimators.bound import FindingBase, format_lower
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Comparison, Series, Validity
from dpaudit.estimators.label_reconstruction.advantage import (
    advantage_cdf,
    advantage_quantile,
    label_privacy_ceiling,
    multiplicative_advantage,
    release_gain,
)
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Beliefs P[label = 1] about binary labels before and after one release.

    Attributes:
        prior: Belief before the release, in [0, 1], shape (n,), n >= 1.
        posterior: Belief after the release, in [0, 1], shape (n,).
        bag: Number of each example's bag, shape (n,); the examples of one bag share a release. -1 marks examples about
            which nothing is released; at least one example must have a bag.
        release: Number of the release, if there are several independent ones.
        shift: Change of the log-odds by the release, in nats, shape (n,), may be infinite. None computes it from the
            posterior, which is inaccurate near 0 and 1.
        expected: Additive advantage of each example, averaged over all releases of its bag, in [0, 1), shape (n,); None
            if only this release is known.
        labels: True labels, 0 or 1, shape (n,); None if they are unknown.
    """

    words: ClassVar[str] = "posteriors"
    ROWS: ClassVar[bool] = True

    prior: NDArray[np.float64]
    posterior: NDArray[np.float64]
    bag: NDArray[np.int64]
    release: int = field(default=0, metadata={"stored": "int32"})
    shift: NDArray[np.float64] | None = field(default=None, metadata={"stored": "float64"})
    expected: NDArray[np.float64] | None = field(default=None, metadata={"stored": "float64"})
    labels: NDArray[np.int64] | None = field(default=None, metadata={"stored": "int8"})

    def __post_init__(self) -> None:
        for name in ("prior", "posterior"):
            belief = np.asarray(getattr(self, name), dtype=np.float64)
            require(belief.size > 0 and belief.ndim == 1, f"{name} must be one column", shape=belief.shape)
            inside = bool(((belief >= 0) & (belief <= 1)).all())  # refuses NaN as well
            require(inside, f"{name} must hold probabilities in [0, 1]")
            object.__setattr__(self, name, belief)
        object.__setattr__(self, "bag", np.asarray(self.bag, dtype=np.int64))
        require(
            self.prior.shape == self.posterior.shape == self.bag.shape,
            "prior, posterior and bag must be equally long",
            prior=self.prior.shape,
            posterior=self.posterior.shape,
            bag=self.bag.shape,
        )
        require(bool((self.bag >= -1).all()), "bag must hold numbers >= 0, or -1 for examples without a release")
        require(bool((self.bag >= 0).any()), "something must be released about at least one example")
        for name, column in (("shift", self.shift), ("expected", self.expected), ("labels", self.labels)):
            fits = column is None or column.shape == self.bag.shape
            require(fits, f"{name} must be as long as prior", prior=self.prior.shape)
        require(self.labels is None or bool(np.isin(self.labels, (0, 1)).all()), "labels must be 0 or 1")
        if self.labels is not None:
            object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))


Kind = Literal["additive", "multiplicative", "tail"]
WORDS: Mapping[str, str] = {
    "additive": "additive advantage",
    "multiplicative": "multiplicative advantage",
    "tail": "additive advantage at one release",
}
QUANTITIES: Mapping[str, str] = {
    "additive": "mean additive advantage",
    "multiplicative": "largest multiplicative advantage",
    "tail": "largest additive advantage at one release",
}
"""Quantity that is compared with a claim, by kind of advantage."""

# Log-odds of posteriors have rounding errors of about 1e-16. Values compared with a claim are lowered by much more.
_SAFE = 1 - 1e-9
MEASURES: tuple[Kind, ...] = ("multiplicative", "additive")
"""The two measures of the paper, which are shown side by side."""
UNITS: Mapping[str, str] = {"multiplicative": ", nats", "additive": "", "tail": ""}
GROUPS = 10  # groups of examples in the calibration diagram of the priors
MAX_DRAWN = 4_000  # largest number of examples in a figure of beliefs
MAX_STANDARD_ERRORS = 3.0  # standard errors above which computed and realised advantage differ by more than chance


@dataclass(frozen=True)
class Realised:
    """Advantage of the attacker against true labels, next to the advantage that its posteriors predict."""

    computed: float  # mean gain in the probability of a right guess, by the attacker's own posteriors
    realised: float  # mean gain in the share of right guesses
    error: float  # upper limit of the standard error of the difference

    @property
    def differs(self) -> bool:
        """True if the two differ by more than chance."""
        return abs(self.realised - self.computed) > MAX_STANDARD_ERRORS * self.error

    def __str__(self) -> str:
        judgement = (
            "they differ: the priors are not calibrated, and advantages computed from them are off by as much"
            if self.differs
            else "the difference is within chance"
        )
        return (
            f"played against true labels the attacker gains {self.realised:.5f}, by its own beliefs "
            f"{self.computed:.5f} (difference {self.realised - self.computed:+.5f}, standard error {self.error:.5f}): "
            f"{judgement}"
        )


@dataclass(frozen=True)
class AdvantageDistribution(FindingBase):
    """Absolute advantages of all examples; exact given the priors, hence without a confidence."""

    # "additive": gain in the probability of a right guess, averaged over releases, in [0, 1]. "multiplicative": change
    # of the log-odds by one release, in nats. "tail": gain in the probability of a right guess at one release, at least
    # 0
    kind: Kind
    mean: float  # mean over the examples, >= 0; may be inf
    largest: float  # maximum over the examples, >= 0; may be inf
    # pairs of a level in [0, 1] and the advantage that this share of the examples stays within
    quantiles: tuple[tuple[float, float], ...]
    method: str  # registered name of the estimator, with its variant
    within: tuple[tuple[float, float], ...] = ()  # pairs of a threshold and the share of examples within it
    counts: tuple[tuple[str, int], ...] = ()  # examples, bags, releases
    notes: tuple[str, ...] = ()  # sentences that must be printed with the finding
    # columns of numbers for figures, by name
    series: Mapping[str, Series] = field(default_factory=dict, compare=False, repr=False)
    realised: Realised | None = None  # advantage against true labels; None if they are unknown

    validity = Validity.EXACT  # nothing was sampled
    confidence = None
    selection = "every example"  # nothing was chosen

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, QUANTITIES)
        require(self.mean >= 0, "a mean of advantages must be >= 0", mean=self.mean)
        require(self.largest >= 0, "the largest advantage must be >= 0", largest=self.largest)
        if self.realised is not None:
            object.__setattr__(self, "notes", (*self.notes, str(self.realised)))

    @property
    def _compared_value(self) -> float:
        return (self.mean if self.kind == "additive" else self.largest) * _SAFE

    @property
    def headline(self) -> str:
        unit = " nats" if self.kind == "multiplicative" else ""
        return f"{QUANTITIES[self.kind]} {format_lower(self._compared_value, 6)}{unit}"

    def comparison(self, curve: PrivacyCurve) -> Comparison:
        """Compare with the largest value that the epsilon claimed at delta = 0 allows as label privacy."""
        allowed = _allowed(self.kind, curve.epsilon(0.0))
        return Comparison(QUANTITIES[self.kind], "delta = 0", self._compared_value, allowed, self.headline)

    def to_dict(self) -> Mapping[str, Any]:
        return {
            "kind": self.kind,
            "mean": self.mean,
            "largest": self.largest,
            "quantiles": [list(pair) for pair in self.quantiles],
            "within": [list(pair) for pair in self.within],
            "realised": None if self.realised is None else asdict(self.realised),
            **self._common_fields(),
        }

    def __str__(self) -> str:
        quantiles = ", ".join(f"{level:g} quantile {value:.6g}" for level, value in self.quantiles)
        return f"{self.headline} (exact given the priors; {self.method}; {quantiles})"


def _allowed(kind: Kind, epsilon: float) -> float:
    """Return the largest value under label privacy `epsilon`; a tail is largest at prior 1/2."""
    if kind == "multiplicative" or math.isinf(epsilon):
        return epsilon
    return label_privacy_ceiling(epsilon) / (2 if kind == "tail" else 1)


@dataclass(frozen=True, eq=False)
class AdvantageTally:
    """Advantages at one release. All arrays of shape (n,) leave out examples about which nothing is released."""

    release: int  # number of the release
    bags: int  # number of bags
    left_out: int  # number of examples about which nothing is released
    multiplicative: Floats  # change of the log-odds, nats, shape (n,); may be infinite
    additive: Floats  # additive advantage, averaged over releases, shape (n,); (0,) if unknown
    gain: Floats  # gain in the probability of a right guess, shape (n,); may be negative
    prior: Floats  # prior of some examples, for a figure, shape (drawn,)
    posterior: Floats  # posterior of the same examples
    # mean prior of label 1 in groups of examples, ordered by prior, shape (groups,); (0,) if labels are unknown
    believed: Floats
    observed: Floats  # share of label 1 in each group
    grouped: Ints  # number of examples in each group
    computed: float  # mean gain in the probability of a right guess, by the posteriors
    realised: float  # mean gain in the share of right guesses against true labels; NaN if they are unknown
    error: float  # standard error of the difference of the two means, for independent bags; NaN if labels are unknown


@register("estimator", "label-advantage", source="Busa-Fekete et al. (2024), Definitions 3.1 and 3.6, section 4")
@dataclass(frozen=True)
class LabelAdvantage(Estimator[Posteriors, AdvantageTally]):
    """Advantages of an attacker over guessing from priors alone, exact given the priors.

    Attributes:
        quantiles: Levels in [0, 1] of the reported quantiles of absolute advantages.
        within: Thresholds >= 0 for which the share of examples within them is reported.
        kind: Kind of advantage: "multiplicative" (of the given posteriors), "additive" (averaged over all releases of
            the mechanism), or "tail" (gain in the probability of a right guess at this one release, at least 0).
    """

    evidence: ClassVar[type[Any]] = Posteriors
    tally_type: ClassVar[type[Any]] = AdvantageTally

    quantiles: tuple[float, ...] = (0.5, 0.9, 0.98, 1.0)
    within: tuple[float, ...] = ()
    kind: Kind = "multiplicative"

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, get_args(Kind))
        levels = self.quantiles
        require(all(0 <= level <= 1 for level in levels), "quantiles must be in [0, 1]", quantiles=levels)
        require(all(at >= 0 for at in self.within), "within must be thresholds >= 0", within=self.within)

    def tally(self, evidence: Posteriors) -> AdvantageTally:
        inside = evidence.bag >= 0
        prior, posterior = evidence.prior[inside], evidence.posterior[inside]
        gains = np.asarray(release_gain(prior, posterior))
        drawn_rows = np.unique(np.linspace(0, gains.size - 1, min(gains.size, MAX_DRAWN)).astype(np.int64))
        computed, realised, error = _computed_and_realised(evidence, inside, gains)
        believed, observed, grouped = _calibration_groups(evidence, inside)
        return AdvantageTally(
            release=evidence.release,
            bags=np.unique(evidence.bag[inside]).size,
            left_out=int(np.count_nonzero(~inside)),
            multiplicative=np.asarray(
                multiplicative_advantage(prior, posterior) if evidence.shift is None else evidence.shift[inside]
            ),
            additive=np.empty(0) if evidence.expected is None else evidence.expected[inside],
            gain=gains,
            prior=prior[drawn_rows],
            posterior=posterior[drawn_rows],
            believed=believed,
            observed=observed,
            grouped=grouped,
            computed=computed,
            realised=realised,
            error=error,
        )

    def find(
        self, tallies: Sequence[AdvantageTally], *, failed_replays: int = 0, parts: Sequence[Any] = ()
    ) -> AdvantageDistribution:
        """Return the distribution over all examples of all releases; those of a failed release count as 0.

        Raises: InputError for additive advantages if the posteriors do not include them.
        """
        require(len(tallies) > 0, "a distribution needs the tally of at least one release", tallies=len(tallies))
        spread = {kind: _absolute_advantages(tallies, kind, failed_replays) for kind in get_args(Kind)}
        advantages = spread[self.kind]
        must = "additive advantages are read off posteriors that come with them"
        require(advantages.size > 0, must, do="read the multiplicative or the tail ones")
        counts = {
            "examples": sum(tally.gain.size for tally in tallies),
            "bags": sum(tally.bags for tally in tallies),
            "releases": len(tallies) + failed_replays,
        }
        extra = {
            "left out": sum(tally.left_out for tally in tallies),
            "infinite": int(np.count_nonzero(np.isinf(advantages))),
            "lost releases": failed_replays,
        }
        counts |= {name: count for name, count in extra.items() if count}
        values, shares = self._spread(advantages)
        kinds = [self.kind, *(kind for kind in MEASURES if kind != self.kind and spread[kind].size)]
        return AdvantageDistribution(
            kind=self.kind,
            mean=float(advantages.mean()),
            largest=float(advantages.max()),
            quantiles=tuple(zip(self.quantiles, values, strict=True)),
            within=tuple(zip(self.within, shares, strict=True)),
            method=f"label-advantage ({self.kind})",
            counts=tuple(counts.items()),
            notes=("exact given the priors: another prior gives other advantages",),
            series={
                **{f"advantages-{kind}": _quantiles(spread[kind], kind) for kind in kinds},
                "beliefs": _beliefs(tallies),
                **_reliability(tallies),
            },
            realised=_realised(tallies),
        )

    def _spread(self, advantages: Floats) -> tuple[list[float], list[float]]:
        """Return the quantiles, and the shares within the thresholds."""
        shares = np.atleast_1d(advantage_cdf(advantages, self.within)).tolist() if self.within else []
        return np.atleast_1d(advantage_quantile(advantages, self.quantiles)).tolist(), shares


def _absolute_advantages(tallies: Sequence[AdvantageTally], kind: Kind, failed_replays: int) -> Floats:
    """Return the advantages of one kind at all releases, at least 0; empty if a release lacks them."""
    by_release = {
        "multiplicative": [np.abs(tally.multiplicative) for tally in tallies],
        "additive": [tally.additive for tally in tallies],
        "tail": [np.maximum(tally.gain, 0.0) for tally in tallies],
    }[kind]
    if not all(part.size for part in by_release):
        return np.empty(0)
    advantages = np.concatenate(by_release)
    return np.concatenate([advantages, np.zeros(failed_replays * advantages.size // len(tallies))])


def _calibration_groups(evidence: Posteriors, inside: NDArray[np.bool_]) -> tuple[Floats, Floats, Ints]:
    """Return mean prior, share of positives and number of examples in groups of equal size, ordered by prior."""
    if evidence.labels is None:
        return np.empty(0), np.empty(0), np.empty(0, np.int64)
    prior, labels = evidence.prior[inside], evidence.labels[inside] == 1
    order = np.argsort(prior, kind="stable")
    parts = np.array_split(order, min(GROUPS, order.size))
    believed, observed = (np.array([column[part].mean() for part in parts]) for column in (prior, labels))
    return believed, observed, np.array([part.size for part in parts])


def _reliability(tallies: Sequence[AdvantageTally]) -> dict[str, Series]:
    """Return the calibration groups of the first release; all releases share priors and labels."""
    first = tallies[0]
    columns = {"believed": first.believed, "observed": first.observed, "examples": first.grouped}
    return {"reliability": columns} if first.grouped.size else {}


def _computed_and_realised(
    evidence: Posteriors, inside: NDArray[np.bool_], gains: Floats
) -> tuple[float, float, float]:
    """Return the mean gain by the posteriors and against the labels, and the standard error of their difference."""
    if evidence.labels is None:
        return float(gains.mean()), math.nan, math.nan
    labels = evidence.labels[inside]
    realised = _correctness(evidence.posterior[inside], labels) - _correctness(evidence.prior[inside], labels)
    _, bag = np.unique(evidence.bag[inside], return_inverse=True)
    # Given the release, labels are dependent within a bag and independent between bags.
    differences = np.bincount(bag, weights=realised - gains)
    return float(gains.mean()), float(realised.mean()), float(np.sqrt(np.square(differences).sum()) / gains.size)


def _correctness(belief: Floats, labels: Ints) -> Floats:
    """Return 1 if the best guess is right, 0 if it is wrong, and 1/2 if the belief is 1/2."""
    return np.where(belief == 0.5, 0.5, ((belief > 0.5) == (labels == 1)).astype(np.float64))


def _realised(tallies: Sequence[AdvantageTally]) -> Realised | None:
    computed, realised, error = (
        float(np.mean([getattr(tally, name) for tally in tallies])) for name in ("computed", "realised", "error")
    )
    # Releases share their labels. The error of a mean of dependent numbers is at most the mean of their errors.
    return None if math.isnan(realised) else Realised(computed, realised, error)


def _beliefs(tallies: Sequence[AdvantageTally]) -> Series:
    """Return priors and posteriors of as many examples of each release as a figure can show.

    Releases show examples of different places, because they have the same examples.
    """
    each = max(1, MAX_DRAWN // len(tallies))
    steps = [-(-len(tally.prior) // each) for tally in tallies]
    places = [slice(number % step, None, step) for number, step in enumerate(steps)]
    prior = np.concatenate([tally.prior[place] for tally, place in zip(tallies, places, strict=True)])
    posterior = np.concatenate([tally.posterior[place] for tally, place in zip(tallies, places, strict=True)])
    return {"prior": prior[:MAX_DRAWN], "posterior": posterior[:MAX_DRAWN]}


def _quantiles(advantages: Floats, kind: Kind) -> Series:
    """Return the distribution of |advantage| over the examples in at most a thousand points; shape (n,), n > 0."""
    ranked = np.sort(np.abs(advantages))
    places = np.unique(np.linspace(0, ranked.size - 1, min(ranked.size, 1_000)).astype(np.int64))
    return {
        "share": (places + 1) / ranked.size,
        "advantage": ranked[places],
        "kind": kind,
        "quantity": WORDS[kind] + UNITS[kind],
        "reported": QUANTITIES[kind],
        "mean": float(ranked.mean()),
        "largest": float(ranked[-1]),
    }
