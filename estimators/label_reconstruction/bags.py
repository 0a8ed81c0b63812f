"""How much better an attacker guesses labels after a label-private release, from posteriors of single examples."""

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
from dpaudit.estimators.posteriors import Posteriors
from dpaudit.registry import register

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
"""What is compared with a claim: the mean additive advantage, the largest shift of log-odds, the largest gain."""

# Log-odds of posteriors carry rounding errors of some 1e-16: what is compared with a claim is lowered by far more.
_SAFE = 1 - 1e-9
MEASURES: tuple[Kind, ...] = ("multiplicative", "additive")
"""The paper's two, which are shown beside each other."""
UNITS: Mapping[str, str] = {"multiplicative": ", nats", "additive": "", "tail": ""}
GROUPS = 10  # of examples, to see whether their priors are calibrated
SHOWN = 4_000  # examples in a figure of beliefs at most
APART = 3.0  # standard errors beyond which computed and realised advantage are said to differ


@dataclass(frozen=True)
class Realised:
    """The attacker played against true labels, beside what its beliefs say of itself."""

    computed: float  # how much likelier its guesses are right once the release is out, by its own posteriors; mean
    realised: float  # how much more often they were right
    error: float  # standard error of the difference, at most

    @property
    def parts(self) -> bool:
        """Whether the two differ by more than chance."""
        return abs(self.realised - self.computed) > APART * self.error

    def __str__(self) -> str:
        said = (
            "they part: the priors are not calibrated, and advantages computed from them are off by as much"
            if self.parts
            else "no more apart than chance"
        )
        return (
            f"played against true labels the attacker gains {self.realised:.5f}, by its own beliefs "
            f"{self.computed:.5f} (difference {self.realised - self.computed:+.5f}, standard error {self.error:.5f}): "
            f"{said}"
        )


@dataclass(frozen=True)
class AdvantageDistribution(FindingBase):
    """Advantages of all examples, in absolute value; exact given the priors: no confidence."""

    # "additive": how much likelier the best guess is right, on average over releases, in [0, 1]. "multiplicative": how
    # far one release moves the log-odds, in nats. "tail": how much likelier the best guess is right at one release than
    # before it, 0 where it is not
    kind: Kind
    mean: float  # over the examples, >= 0; may be inf
    largest: float  # over the examples, >= 0; may be inf
    # level in [0, 1] and the advantage that this share of the examples stays within
    quantiles: tuple[tuple[float, float], ...]
    method: str  # the estimator's registered name, with its variant
    within: tuple[tuple[float, float], ...] = ()  # threshold and the share of examples that stays within it
    counts: tuple[tuple[str, int], ...] = ()  # examples, bags, releases
    notes: tuple[str, ...] = ()  # sentences a reader must see beside it
    # what there is to draw, by name
    series: Mapping[str, Series] = field(default_factory=dict, compare=False, repr=False)
    realised: Realised | None = None  # the attacker played against true labels; None where they are not known

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
    def _compared(self) -> float:
        return (self.mean if self.kind == "additive" else self.largest) * _SAFE

    @property
    def headline(self) -> str:
        unit = " nats" if self.kind == "multiplicative" else ""
        return f"{QUANTITIES[self.kind]} {format_lower(self._compared, 6)}{unit}"

    def comparison(self, curve: PrivacyCurve) -> Comparison:
        """Beside the most that label privacy with the epsilon claimed at delta = 0 allows."""
        allowed = _allowed(self.kind, curve.epsilon(0.0))
        return Comparison(QUANTITIES[self.kind], "delta = 0", self._compared, allowed, self.headline)

    def to_dict(self) -> Mapping[str, Any]:
        return {
            "kind": self.kind,
            "mean": self.mean,
            "largest": self.largest,
            "quantiles": [list(pair) for pair in self.quantiles],
            "within": [list(pair) for pair in self.within],
            "realised": None if self.realised is None else asdict(self.realised),
            **self._said(),
        }

    def __str__(self) -> str:
        shown = ", ".join(f"{level:g} quantile {value:.6g}" for level, value in self.quantiles)
        return f"{self.headline} (exact given the priors; {self.method}; {shown})"


def _allowed(kind: Kind, epsilon: float) -> float:
    """Return the largest value that a release with label privacy `epsilon` allows; the tail is largest at prior 1/2."""
    if kind == "multiplicative" or math.isinf(epsilon):
        return epsilon
    return label_privacy_ceiling(epsilon) / (2 if kind == "tail" else 1)


@dataclass(frozen=True, eq=False)
class AdvantageTally:
    """The advantages at one release."""

    release: int  # number of the release
    bags: int  # how many bags it is made of
    left_out: int  # examples that nothing was released about, which are not among the others
    multiplicative: Floats  # how far the log-odds of each other example moved, nats, shape (n,); may be infinite
    additive: Floats  # additive advantage of each, on average over releases, shape (n,); (0,) where that is not known
    gain: Floats  # how much likelier the best guess of each is right than before, shape (n,); below 0 where it is not
    prior: Floats  # of some of them, for a figure, shape (shown,)
    posterior: Floats  # of the same, the same shape
    # Mean prior of label 1 in groups of examples, by that prior, shape (groups,); (0,) where labels are not known
    believed: Floats
    observed: Floats  # share of each group whose label is 1, likewise
    grouped: Ints  # examples in each group, likewise
    computed: float  # how much likelier the best guess is right than before the release, as the beliefs say; mean
    realised: float  # the same as true labels say; NaN where they are not known
    error: float  # standard error of the difference of the two means, bags being independent; NaN likewise


@register("estimator", "label-advantage", source="Busa-Fekete et al. (2024), Definitions 3.1 and 3.6, section 4")
@dataclass(frozen=True)
class LabelAdvantage(Estimator[Posteriors, AdvantageTally]):
    """Advantages of an attacker over guessing from priors alone, exact given the priors.

    Attributes:
        quantiles: Levels in [0, 1] at which the advantages' absolute values are shown.
        within: Thresholds >= 0: the share of examples whose advantage stays within each of them is shown.
        kind: Which advantages are read off posteriors: "multiplicative" (of the given posteriors), "additive" (on
            average over all releases of the mechanism), or "tail" (how much likelier the best guess is right at this
            one release than before it, 0 where it is not).
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
        shown = np.unique(np.linspace(0, gains.size - 1, min(gains.size, SHOWN)).astype(np.int64))
        computed, realised, error = _played(evidence, inside, gains)
        believed, observed, grouped = _grouped(evidence, inside)
        return AdvantageTally(
            release=evidence.release,
            bags=np.unique(evidence.bag[inside]).size,
            left_out=int(np.count_nonzero(~inside)),
            multiplicative=np.asarray(
                multiplicative_advantage(prior, posterior) if evidence.shift is None else evidence.shift[inside]
            ),
            additive=np.empty(0) if evidence.expected is None else evidence.expected[inside],
            gain=gains,
            prior=prior[shown],
            posterior=posterior[shown],
            believed=believed,
            observed=observed,
            grouped=grouped,
            computed=computed,
            realised=realised,
            error=error,
        )

    def find(self, tallies: Sequence[AdvantageTally], *, failed_replays: int = 0) -> AdvantageDistribution:
        """The distribution over all examples of all releases; those of a lost release count as 0.

        Raises: InputError for additive advantages of posteriors that do not come with them.
        """
        require(len(tallies) > 0, "a distribution needs the tally of at least one release", tallies=len(tallies))
        spread = {kind: _all(tallies, kind, failed_replays) for kind in get_args(Kind)}
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
        shown = [self.kind, *(kind for kind in MEASURES if kind != self.kind and spread[kind].size)]
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
                **{f"advantages-{kind}": _quantiles(spread[kind], kind) for kind in shown},
                "beliefs": _beliefs(tallies),
                **_reliability(tallies),
            },
            realised=_realised(tallies),
        )

    def _spread(self, advantages: Floats) -> tuple[list[float], list[float]]:
        """The quantiles, and the shares that stay within the thresholds."""
        shares = np.atleast_1d(advantage_cdf(advantages, self.within)).tolist() if self.within else []
        return np.atleast_1d(advantage_quantile(advantages, self.quantiles)).tolist(), shares


def _all(tallies: Sequence[AdvantageTally], kind: Kind, failed_replays: int) -> Floats:
    """The advantages of one kind at all releases, none below 0; empty where not all of them have it."""
    found = {
        "multiplicative": [np.abs(tally.multiplicative) for tally in tallies],
        "additive": [tally.additive for tally in tallies],
        "tail": [np.maximum(tally.gain, 0.0) for tally in tallies],
    }[kind]
    if not all(part.size for part in found):
        return np.empty(0)
    together = np.concatenate(found)
    return np.concatenate([together, np.zeros(failed_replays * together.size // len(tallies))])


def _grouped(evidence: Posteriors, inside: NDArray[np.bool_]) -> tuple[Floats, Floats, Ints]:
    """Mean prior, share of positives and number of examples in groups of equal size, by the prior."""
    if evidence.labels is None:
        return np.empty(0), np.empty(0), np.empty(0, np.int64)
    prior, labels = evidence.prior[inside], evidence.labels[inside] == 1
    order = np.argsort(prior, kind="stable")
    parts = np.array_split(order, min(GROUPS, order.size))
    believed, observed = (np.array([column[part].mean() for part in parts]) for column in (prior, labels))
    return believed, observed, np.array([part.size for part in parts])


def _reliability(tallies: Sequence[AdvantageTally]) -> dict[str, Series]:
    """Of the first release: the priors and labels of all of them are the same."""
    first = tallies[0]
    columns = {"believed": first.believed, "observed": first.observed, "examples": first.grouped}
    return {"reliability": columns} if first.grouped.size else {}


def _played(evidence: Posteriors, inside: NDArray[np.bool_], gains: Floats) -> tuple[float, float, float]:
    """The mean gain as the beliefs say, as the labels say, and the standard error of their difference."""
    if evidence.labels is None:
        return float(gains.mean()), math.nan, math.nan
    labels = evidence.labels[inside]
    won = _right(evidence.posterior[inside], labels) - _right(evidence.prior[inside], labels)
    _, bag = np.unique(evidence.bag[inside], return_inverse=True)
    # Labels of one bag depend on each other given what was released of it; those of different bags do not.
    apart = np.bincount(bag, weights=won - gains)
    return float(gains.mean()), float(won.mean()), float(np.sqrt(np.square(apart).sum()) / gains.size)


def _right(belief: Floats, labels: Ints) -> Floats:
    """Return 1 if the best guess is right, 0 if it is wrong, and a half if the belief is a half."""
    return np.where(belief == 0.5, 0.5, ((belief > 0.5) == (labels == 1)).astype(np.float64))


def _realised(tallies: Sequence[AdvantageTally]) -> Realised | None:
    computed, realised, error = (
        float(np.mean([getattr(tally, name) for tally in tallies])) for name in ("computed", "realised", "error")
    )
    # Releases share their labels: the error of a mean of dependent numbers is at most the mean of their errors.
    return None if math.isnan(realised) else Realised(computed, realised, error)


def _beliefs(tallies: Sequence[AdvantageTally]) -> Series:
    """As many examples of each release as make no more than a figure shows."""
    each = max(1, SHOWN // len(tallies))
    prior = np.concatenate([tally.prior[:: -(-len(tally.prior) // each)] for tally in tallies])
    posterior = np.concatenate([tally.posterior[:: -(-len(tally.posterior) // each)] for tally in tallies])
    return {"prior": prior[:SHOWN], "posterior": posterior[:SHOWN]}


def _quantiles(advantages: Floats, kind: Kind) -> Series:
    """The spread of |advantage| over the examples, at most a thousand points; advantages of shape (n,), n > 0."""
    ranked = np.sort(np.abs(advantages))
    shown = np.unique(np.linspace(0, ranked.size - 1, min(ranked.size, 1_000)).astype(np.int64))
    return {
        "share": (shown + 1) / ranked.size,
        "advantage": ranked[shown],
        "kind": kind,
        "quantity": WORDS[kind] + UNITS[kind],
        "reported": QUANTITIES[kind],
        "mean": float(ranked.mean()),
        "largest": float(ranked[-1]),
    }
