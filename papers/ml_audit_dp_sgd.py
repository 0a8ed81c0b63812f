"""ML-Audit's part on DP-SGD, Figure 8 of Lu et al. (2022): three attacks on Fashion-MNIST and CIFAR-10.

The figure's numbers stand in an appendix that is not at hand; section 5 says what it shows: the shadow adversarial
attack finds more than ClipBKD on Fashion-MNIST and less on CIFAR-10, and ClipBKD with more outputs a little more than
as published. Here two classes, a logistic regression, and a record that comes, under add/remove neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from dpaudit.engine import drawing as style
from dpaudit.engine.data.images import Cifar10, FashionMnist
from dpaudit.engine.games.neighbours.game import Neighbours
from dpaudit.engine.games.neighbours.output_set import OutputSet, SummaryView
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning
from dpaudit.engine.games.neighbours.poisonings.rows import ClipBackdoorPair, InsertRecords
from dpaudit.engine.games.neighbours.poisonings.shadow_adversarial import ShadowAdversarial
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.run.driver import audit
from dpaudit.engine.spec.audit_spec import Audit, AuditSpec
from dpaudit.estimators import chart
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.selection import Split
from dpaudit.estimators.two_world.ratio import KatzLog
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.registry import register
from papers.making import Made, Options
from papers.ml_audit_panels import WHOLE

EPSILONS = {"small": (1.0, 4.0, 16.0), "paper": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)}
ROWS = {"small": 500, "paper": 5_000}
EACH = 500
"""Fresh trainings of each world, on average: the paper's N for DP-SGD. As many again teach the attack."""
DELTA = 1e-5
NETWORK = Mlp(hidden=(), epochs=10, batch_size=50, learning_rate=0.5, momentum=0.0)
PUBLISHED, UPDATED, SHADOW = "ClipBKD as published", "ClipBKD, all answers", "shadow adversarial"


@dataclass(frozen=True)
class TwoClasses:
    """The first pictures of two classes, as rows of numbers.

    Attributes:
        pictures: The data set; its classes 0 and 1 are taken.
        rows: How many, >= 2.
    """

    pictures: Any = field(metadata={"kind": "data"})
    rows: int

    def load(self, *, seed: int = 0) -> Examples:
        """Features (rows, d), decided by the data set's own `seed`."""
        every: Examples = self.pictures.load(seed=seed)
        kept = every.take(np.flatnonzero(every.labels < 2)[: self.rows])
        return Examples(np.asarray(kept.features).reshape(len(kept), -1), kept.labels, 2, f"{every.name}, two classes")


@dataclass(frozen=True)
class AnswerAtThePoint:
    """ClipBKD as published: one number, the answer at the crafted point less the answer at zero.

    Of two classes the log-odds are one answer; the search samples say which of both classes the record has.
    """

    view: ClassVar[type[SummaryView]] = SummaryView

    def score(self, view: SummaryView) -> NDArray[np.float64]:
        """The difference, higher for the record's class, shape (n,)."""
        known, fresh = (summaries[:, 0] - summaries[:, 1] for summaries in (view.search, view.fresh))
        sign = 1.0 if known[view.search_truth].mean() >= known[~view.search_truth].mean() else -1.0
        found: NDArray[np.float64] = sign * fresh
        return found


@register("reproduction", "ml-audit figure-8", source="Lu et al. (2022), Figure 8 and section 5, DP-SGD")
def figure_8(options: Options) -> Made:
    """DP-SGD: ClipBKD as published, ClipBKD with all answers, and the shadow adversarial record, on two data sets."""
    folder = options.output / "figure-8"
    audits = [
        entry
        for name, data in _data_sets(options).items()
        for epsilon in EPSILONS[options.scale]
        for entry in _audits(name, data, epsilon, options)
    ]
    options.say(f"{len(audits) * 2 // 3} x {2 * EACH:,} trainings, {len(audits)} bounds of them; {MINUTES}")
    run = replace(options.run, figures=False)
    spec = AuditSpec(tuple(audits), name="DP-SGD, figure 8", seed=options.seed, run=run)
    results = audit(spec, output=folder / "audits", listeners=options.listeners, quiet=not options.listeners).results
    rows = [_row(result) for result in results]
    pacsv.write_csv(pa.Table.from_pylist(rows), folder / "figure-8.csv")
    _draw(rows, options)
    lines = [
        "Lower bounds on epsilon of one record that comes, by its claim:",
        f"{'':26}{'':24}{'fair coins':>12}{'Katz-log':>12}",
        *(
            f"{row['data']:<15}{'ε = ' + format(row['epsilon'], 'g'):<11}{row['attack']:<24}"
            f"{format_lower(row['fair coins'], 2):>12}{format_lower(row['Katz-log'], 2):>12}"
            for row in _joined(rows)
        ),
    ]
    return Made("\n".join(lines), (folder / "figure-8.png", folder / "figure-8.csv"))


MINUTES = "about 25 minutes of one core at the small scale with both data sets"


def _data_sets(options: Options) -> dict[str, Any]:
    """Those of the folder at --data: `fashion_mnist` in idx files, `cifar10` in binary batches."""
    folder, rows = options.data_path("a folder that holds fashion_mnist and cifar10"), ROWS[options.scale]
    kinds = {"Fashion-MNIST": (FashionMnist, "fashion_mnist"), "CIFAR-10": (Cifar10, "cifar10")}
    return {name: TwoClasses(kind(f"{folder}/{place}"), rows) for name, (kind, place) in kinds.items()}


def _audits(name: str, data: Any, epsilon: float, options: Options) -> list[Audit]:
    """Three attacks on one setting; both of ClipBKD read the same trainings. Fair coins first, then Katz-log."""
    network = replace(NETWORK, batch_size=ROWS[options.scale] // 10)
    learner = DpSgd(epsilon, delta=DELTA, sample_rate=0.1, model=network)
    backdoor, shadow = ClipBackdoorPair(asked=8), ShadowAdversarial(model=network)
    attacks: dict[str, tuple[Poisoning, Any]] = {
        PUBLISHED: (backdoor, AnswerAtThePoint()),
        UPDATED: (backdoor, OutputSet(("linear",))),
        SHADOW: (shadow, OutputSet(("linear",))),
    }
    estimators = {"fair coins": "fair-coins", "Katz-log": KatzLog(delta=DELTA, selection=Split())}
    return [
        Audit(
            learner,
            data,
            game=Neighbours(
                trials=2 * EACH, search=2 * EACH, stack=EACH, poisoning=InsertRecords(poisoning), scale="box"
            ),
            attack=attack,
            estimator=estimator,
            split=WHOLE,
            name=f"{name}, {epsilon:g}, {label}, {bound}",
        )
        for label, (poisoning, attack) in attacks.items()
        for bound, estimator in estimators.items()
    ]


def _row(result: AuditResult) -> dict[str, Any]:
    data, epsilon, *attack, bound = result.name.split(", ")
    return {
        "data": data,
        "epsilon": float(epsilon),
        "attack": ", ".join(attack),
        "bound": bound,
        "detected": result.epsilon,
        "verdict": result.verdict.value,
    }


def _joined(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both bounds of an attack in one row."""
    return [{**one, one["bound"]: one["detected"], other["bound"]: other["detected"]} for one, other in _pairs(rows)]


def _pairs(rows: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return list(zip(rows[::2], rows[1::2], strict=True))


def _draw(rows: Sequence[dict[str, Any]], options: Options) -> None:
    """A panel for each data set: claimed against detected, solid by fair coins, dashed by Katz-log."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, panels = style.canvases(len(names), width=4.8 * len(names), height=4.0)
    places = np.arange(len(EPSILONS[options.scale]))
    for name, axes in zip(names, panels, strict=True):
        for attack, colour in zip((PUBLISHED, UPDATED, SHADOW), chart.COLOURS, strict=False):
            for bound, line in (("fair coins", "-"), ("Katz-log", "--")):
                own = [row for row in rows if (row["data"], row["attack"], row["bound"]) == (name, attack, bound)]
                heights = [row["detected"] for row in own]
                axes.plot(places, heights, f"o{line}", color=colour, markersize=4, label=f"{attack}, {bound}")
        axes.set_xticks(places, [f"{epsilon:g}" for epsilon in EPSILONS[options.scale]])
        axes.set_ylim(bottom=0)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("claimed ε")
    panels[0].set_ylabel("lower bound on ε, nats")
    panels[0].legend(fontsize=7.5, frameon=False)
    style.save(figure, options.output / "figure-8", "figure-8")
