"""ML-Audit's part on DP-SGD, Figure 8 of Lu et al. (2022): three attacks on Fashion-MNIST and CIFAR-10.

The figure's numbers are in an appendix that is not available. Section 5 states its results: the shadow adversarial
attack has larger bounds than ClipBKD on Fashion-MNIST and smaller ones on CIFAR-10. On Fashion-MNIST, ClipBKD with more
outputs has moderately larger bounds than as published. The reproduction has two classes, a logistic regression and one
added record, which is one step of add/remove neighbours. ClipBKD's pair of labels would be two steps, and at delta > 0
half of a bound on two steps is not a bound on one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import special

from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.attacks.output_set import OutputSet, SummaryView
from dpaudit.engine.data.images import FashionMnist
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.engine.games.neighbours.game import Neighbours, Scale
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning
from dpaudit.engine.games.neighbours.poisonings.rows import ClipBackdoorPair, InsertRecords
from dpaudit.engine.games.neighbours.poisonings.shadow_adversarial import ShadowAdversarial
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import audit
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import AsPublished, Fixed
from dpaudit.estimators.two_world.confusion_tables import ClopperPearson
from dpaudit.estimators.two_world.ratio import KatzLog
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.registry import register
from papers.data.picture_strips import cifar10
from papers.ml_audit_panels import WHOLE
from papers.reproduction import Options, Reproduction

EPSILONS = {"small": (1.0, 4.0, 16.0), "paper": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)}
ROWS = {"small": 500, "paper": 5_000}
SEEDS = 3
EACH = 500
"""Fresh trainings of each world, on average: the paper's N for DP-SGD. As many others train the attack."""
DELTA = 1e-5
CONFIDENCE = 0.95
RAREST = 0.01
"""Minimum share of a world's search samples in the output set or in its complement: the paper's r, whose value is
not stated."""
SCALE: Scale = "none"
"""Pixels are in [0, 1] already. Clipping to a "box" would remove half or more of the length of ClipBKD's point."""
NETWORK = Mlp(hidden=(), epochs=10, batch_size=50, learning_rate=0.5, momentum=0.0)
PUBLISHED, UPDATED, SHADOW = "ClipBKD as published", "ClipBKD updated", "shadow adversarial"
SHADOW_UPDATED = "shadow adversarial, all answers"
ATTACKS = (PUBLISHED, UPDATED, SHADOW, SHADOW_UPDATED)
BOUNDS = ("Katz-log", "Clopper-Pearson", "fair coins")


@dataclass(frozen=True)
class TwoClasses:
    """The first pictures of two classes, as rows of numbers.

    Attributes:
        pictures: The data set; its classes 0 and 1 are used.
        rows: Number of pictures, >= 2.
    """

    pictures: Any = field(metadata={"kind": "data"})
    rows: int

    def load(self, *, seed: int = 0) -> Examples:
        """Return features of shape (rows, d), determined by the `seed` field of the data set."""
        every: Examples = self.pictures.load(seed=seed)
        chosen = every.take(np.flatnonzero(every.labels < 2)[: self.rows])
        return Examples(
            np.asarray(chosen.features).reshape(len(chosen), -1), chosen.labels, 2, f"{every.name}, two classes"
        )


@dataclass(frozen=True)
class AnswerAtThePoint:
    """Score by the first class's probability at the crafted point, for a model of two classes.

    The sign follows from the search samples, which show the record's class.

    Attributes:
        less: Index of the answer to subtract. Published ClipBKD subtracts its second answer, at zero; None: nothing.
    """

    less: int | None = None
    view: ClassVar[type[SummaryView]] = SummaryView

    def score(self, view: SummaryView) -> NDArray[np.float64]:
        """Return the probability or the difference, with the sign that makes world 1 larger, shape (n,)."""
        search, fresh = self._answers(view.search), self._answers(view.fresh)
        sign = 1.0 if search[view.search_truth].mean() >= search[~view.search_truth].mean() else -1.0
        scores: NDArray[np.float64] = sign * fresh
        return scores

    def _answers(self, log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
        at_the_point: NDArray[np.float64] = special.expit(log_odds[:, 0])
        return at_the_point if self.less is None else at_the_point - special.expit(log_odds[:, self.less])


@dataclass(frozen=True)
class AtTheBestThreshold:
    """An attack's score less the threshold with the largest Katz-log bound on the search samples: Algorithm 1.

    Attributes:
        of: The attack.
    """

    of: Any = field(metadata={"kind": "attack"})
    view: ClassVar[type[SummaryView]] = SummaryView

    def score(self, view: SummaryView) -> NDArray[np.float64]:
        """Return scores that are at least 0 in the output set, shape (n,)."""
        search = Scores(self.of.score(replace(view, fresh=view.search)), view.search_truth)
        katz = KatzLog(delta=DELTA, confidence=CONFIDENCE, selection=AsPublished())
        tally = katz.tally(search)
        alarms, misses = tally.false_positives, tally.members - tally.true_positives
        usable = [
            (counts == 0) | (counts >= RAREST * trials)  # Katz-log is undefined at a count of 0
            for counts, trials in ((alarms, tally.non_members), (misses, tally.members))
        ]
        bounds = np.where(usable[0] & usable[1], katz.lower(tally, 1 - CONFIDENCE), -1.0)
        scores: NDArray[np.float64] = self.of.score(view) - tally.threshold[bounds.argmax()]
        return scores


@register("reproduction", "ml-audit figure-8", source="Lu et al. (2022), Figure 8 and section 5, DP-SGD")
def figure_8(options: Options) -> Reproduction:
    """DP-SGD: ClipBKD as published, ClipBKD with all answers, and the shadow adversarial record, on two data sets.

    Every seed has trainings, records and shadow models of its own. With `only`, some data sets or claims:
    `CIFAR-10, claim 4`.
    """
    folder = options.output / "figure-8"
    cells = options.chosen_parts(
        itertools.product(_data_sets(options).items(), EPSILONS[options.scale]),
        lambda cell: f"{cell[0][0]}, claim {cell[1]:g}",
        must="a data set or a claim, as `CIFAR-10, claim 4`",
    )
    audits = tuple(entry for (name, data), epsilon in cells for entry in _audits(name, data, epsilon, options))
    trained = len(audits) // (len(ATTACKS) * len(BOUNDS)) * 2  # two attacks read each record's trainings
    options.say(f"{SEEDS} seeds of {trained} x {4 * EACH:,} trainings, {len(audits)} bounds of each; {MINUTES}")
    run, rows = replace(options.run, figures=False), []
    for seed in range(options.seed, options.seed + SEEDS):
        spec = AuditSpec(audits, name=f"DP-SGD, figure 8, seed {seed}", seed=seed, run=run)
        place, quiet = folder / f"seed-{seed}", not options.listeners
        results = audit(spec, output=place, listeners=options.listeners, quiet=quiet).results
        rows += [_row(result) | {"seed": seed} for result in results]
    return options.publish("figure-8", [words(rows)], rows, figure=_draw(rows))


MINUTES = "27 minutes of one core at the small scale with both data sets and all claims"


def _data_sets(options: Options) -> dict[str, Any]:
    """Return the data sets of pictures in the folder at --data."""
    options.needed("fashion_mnist", "cifar10")
    data_sets: dict[str, Any] = {}
    if (folder := options.data_set("fashion_mnist")) is not None:
        data_sets["Fashion-MNIST"] = FashionMnist(str(folder))
    if (folder := options.data_set("cifar10")) is not None:
        data_sets["CIFAR-10"] = cifar10(folder)
    return {name: TwoClasses(data, ROWS[options.scale]) for name, data in data_sets.items()}


def _audits(name: str, data: Any, epsilon: float, options: Options) -> list[Audit]:
    """Return the audits of one setting: every attack with every bound; attacks on one record share its trainings."""
    network = replace(NETWORK, batch_size=ROWS[options.scale] // 10)
    learner = DpSgd(epsilon, delta=DELTA, sample_rate=0.1, model=network)
    backdoor, shadow = ClipBackdoorPair(asked=8), ShadowAdversarial(model=network)
    every = OutputSet(("linear",))
    attacks: tuple[tuple[Poisoning, Any], ...] = (
        (backdoor, AnswerAtThePoint(less=1)),
        (backdoor, every),
        (shadow, AnswerAtThePoint()),
        (shadow, every),
    )
    fixed: dict[str, Any] = {"delta": DELTA, "confidence": CONFIDENCE, "selection": Fixed(0.0)}
    estimators = {"Katz-log": KatzLog(**fixed), "Clopper-Pearson": ClopperPearson(**fixed), "fair coins": "fair-coins"}
    return [
        Audit(
            learner,
            data,
            game=Neighbours(
                trials=2 * EACH, search=2 * EACH, stack=EACH, poisoning=InsertRecords(poisoning), scale=SCALE
            ),
            attack=AtTheBestThreshold(attack),
            estimator=estimators[bound],
            split=WHOLE,
            name=f"{name}; {epsilon:g}; {label}; {bound}",
        )
        for label, (poisoning, attack) in zip(ATTACKS, attacks, strict=True)
        for bound in BOUNDS
    ]


def _row(result: AuditResult) -> dict[str, Any]:
    data, epsilon, attack, bound = result.name.split("; ")
    return {
        "data": data,
        "epsilon": float(epsilon),
        "attack": attack,
        "bound": bound,
        "detected": result.epsilon,
        "verdict": result.verdict.value,
    }


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, least and largest of the bounds of several seeds."""
    return float(np.mean(values)), min(values), max(values)


def by_setting(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], tuple[float, float, float]]:
    """Return the `spread` over seeds by data set, claim, attack and bound, in the order of the rows."""
    detected: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("data", "epsilon", "attack", "bound"))
        detected.setdefault(key, []).append(float(row["detected"]))
    return {key: spread(values) for key, values in detected.items()}


def words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line with all bounds for each attack on each claim, then the bounds that exceed their claim."""
    detected = by_setting(rows)
    lines = [
        f"Lower bounds on epsilon of one added record, at 95 %: mean (least to largest) of {SEEDS} seeds",
        f"{'':59}" + "".join(f"{bound:>22}" for bound in BOUNDS),
    ]
    for data, epsilon, attack in dict.fromkeys(key[:3] for key in detected):
        values = [[format_lower(value, 2) for value in detected[data, epsilon, attack, bound]] for bound in BOUNDS]
        cells = "".join(f"{f'{mean} ({least} to {largest})':>22}" for mean, least, largest in values)
        lines.append(f"{data:<15}{f'claim {epsilon:g}':<12}{attack:<32}{cells}")
    above = [row for row in rows if row["detected"] > row["epsilon"]]
    lines.append(f"{len(above)} of {len(rows)} bounds exceed the claim" + (":" if above else "."))
    lines += [
        f"  {row['data']}, claim {row['epsilon']:g}, {row['attack']}, {row['bound']}, seed {row['seed']}"
        for row in above
    ]
    return "\n".join(lines)


def _draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a panel for each data set: means over seeds with their ranges, Katz-log solid, Clopper-Pearson dashed."""
    detected = by_setting(rows)
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, panels = style.canvases(len(names), width=4.8 * len(names), height=4.2)
    claims = sorted({row["epsilon"] for row in rows})
    kinds = [(bound, line) for bound, line in zip(BOUNDS, ("-", "--"), strict=False)]
    for name, axes in zip(names, panels, strict=True):
        for place, (attack, colour) in enumerate(zip(ATTACKS, palette.COLOURS, strict=False)):
            for number, (bound, line) in enumerate(kinds):
                at = [claim for claim in claims if (name, claim, attack, bound) in detected]
                mean, least, largest = np.transpose([detected[name, claim, attack, bound] for claim in at])
                # Side by side, so that ranges can be told apart.
                shift = 0.045 * (place - (len(ATTACKS) - 1) / 2) + 0.02 * number
                axes.errorbar(
                    [claims.index(claim) + shift for claim in at],
                    mean,
                    (mean - least, largest - mean),
                    fmt=f"o{line}",
                    color=colour,
                    markersize=4,
                    capsize=2,
                    elinewidth=1,
                    label=None if number else attack,
                )
        axes.set_xticks(np.arange(len(claims)), [f"{epsilon:g}" for epsilon in claims])
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("claimed ε")
    panels[0].set_ylim(0, 1.05 * max(0.1, *(row["detected"] for row in rows)))
    panels[0].set_ylabel(f"lower bound on ε, nats: mean and range of {SEEDS} seeds")
    panels[0].legend(fontsize=7.5, frameon=False, title="dashed: Clopper-Pearson", title_fontsize=7.5)
    return figure
