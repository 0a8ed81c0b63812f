"""ML-Audit: Figures 2 and 3 of Lu et al. (2022), and the leak of Figure 4a.

Figure 2 differs from the paper in one rule: the paper tries 1, 2, 4 and 8 changed records and takes what was best on
its search samples; here their number is fixed beforehand by the claim, the largest with copies times epsilon at most 4.
Our learners, which are drawn in bulk, take the place of diffprivlib's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from matplotlib.figure import Figure

from dpaudit.claims import Relation
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.data.adult import Adult
from dpaudit.engine.data.bundled import BreastCancer, Iris, Wine
from dpaudit.engine.driver import audit
from dpaudit.engine.findings.result import AuditResult
from dpaudit.engine.games.neighbours import COPIES, Neighbours
from dpaudit.engine.games.numbers import Scale, as_numbers
from dpaudit.engine.poisonings.class_flip import ClassFlip, CornerFlip
from dpaudit.engine.poisonings.clip_bkd import ClipBackdoorPair
from dpaudit.engine.poisonings.coefficients import CoefficientTarget
from dpaudit.engine.poisonings.coming_and_going import Remove
from dpaudit.engine.poisonings.farthest import FarthestFlip
from dpaudit.engine.poisonings.influence import Influence, Surrogate
from dpaudit.engine.poisonings.protocol import Poisoning
from dpaudit.engine.poisonings.swap import SwapX
from dpaudit.engine.report.figures import style
from dpaudit.engine.report.figures.detected import draw_lines, lines_of
from dpaudit.engine.reproduce.making import Made, Options
from dpaudit.engine.spec.audit_spec import Audit, AuditSpec
from dpaudit.engine.spec.partition import Partition
from dpaudit.engine.views.worlds import Worlds, features_of
from dpaudit.estimators.bound import format_lower
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_objective import LogisticObjectivePerturbation
from dpaudit.mechanisms.learners.logistic_regression import LogisticOutputPerturbation
from dpaudit.mechanisms.learners.random_forest import PrivateForest
from dpaudit.mechanisms.planted.naive_bayes import NaiveBayesExposedSize
from dpaudit.registry import register

EPSILONS: Mapping[str, tuple[float, ...]] = {
    "small": (0.5, 1.0, 2.0, 4.0, 8.0),
    "paper": (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 50.0),
}
TRAININGS = {"small": 6_000, "paper": 20_000}
"""Search samples, and as many fresh ones: the paper's 10,000 of each world are 20,000."""
REACH = 4.0
"""Copies times epsilon, at most, where one record alone is below it."""
PENALTY = 0.1
WHOLE = Partition(target=1.0, reference=0.0, test=0.0)
ATTACK = OutputSet(("linear", "additive"))


@dataclass(frozen=True)
class Panel:
    """A learner, what its data are scaled to, and the attacks on it.

    Attributes:
        learner: Its name in the figure.
        make: The learner for an epsilon.
        scale: The range of its numbers.
        attacks: By name, ours first.
    """

    learner: str
    make: Any
    scale: Scale
    attacks: Mapping[str, Poisoning]


def _forest(epsilon: float) -> PrivateForest:
    return PrivateForest(epsilon, depth=8)


def _bayes(epsilon: float) -> GaussianNaiveBayes:
    return GaussianNaiveBayes(epsilon, relation=Relation.REPLACE)


def _output(epsilon: float) -> LogisticOutputPerturbation:
    return LogisticOutputPerturbation(epsilon, penalty=PENALTY)


def _objective(epsilon: float) -> LogisticObjectivePerturbation:
    return LogisticObjectivePerturbation(epsilon, penalty=PENALTY)


_REGRESSION: Mapping[str, Poisoning] = {
    "corner-flip": CornerFlip(),
    "influence": Influence(PENALTY),
    "coefficient-target": CoefficientTarget(PENALTY),
    "clip-bkd": ClipBackdoorPair(),
    "swap-x": SwapX(),
}
PANELS = (
    Panel(
        "naive Bayes",
        _bayes,
        "box",
        {"corner-flip": CornerFlip(), "class-flip": ClassFlip(), "clip-bkd": ClipBackdoorPair(), "swap-x": SwapX()},
    ),
    Panel("output perturbation", _output, "ball", _REGRESSION),
    Panel("objective perturbation", _objective, "ball", _REGRESSION),
    Panel(
        "random forest",
        _forest,
        "box",
        {"farthest-flip": FarthestFlip(), "clip-bkd": ClipBackdoorPair(), "swap-x": SwapX()},
    ),
)


def copies_at(epsilon: float) -> int:
    """The most records, of 1, 2, 4 and 8, with copies times epsilon at most `REACH`; one where epsilon is larger."""
    return max(copies for copies in COPIES if copies == 1 or copies * epsilon <= REACH)


def data_sets(options: Options) -> dict[str, Any]:
    """Iris and breast cancer; with --data, the folder that holds `adult/`, adult as well; at paper scale wine too."""
    found: dict[str, Any] = {"iris": _first_class(Iris()), "breast-cancer": BreastCancer()}
    if options.scale == "paper":
        found["wine"] = _first_class(Wine())
    if options.data is not None:
        folder = Path(options.data)
        found["adult"] = Adult(str(folder / "adult" if (folder / "adult").is_dir() else folder))
    return found


def _first_class(source: Iris | Wine) -> Examples:
    """The first of three classes against the two others: of the irises a line separates it."""
    data = source.load()
    return Examples(data.features, (data.labels == 0).astype(np.int64), 2, f"{data.name}, first class")


@register("reproduction", "ml-audit figure-2", source="Lu et al. (2022), Figure 2")
def figure_2(options: Options) -> Made:
    """Claimed against detected epsilon, for four learners and the attacks on each, over several data sets."""
    folder, sets = options.output / "figure-2", data_sets(options)
    found = {
        (name, panel.learner): _audited(options, folder, name, data, panel)
        for name, data in sets.items()
        for panel in PANELS
    }
    style.save(_drawn(found, list(sets)), folder, "figure-2")
    rows = [
        _row(name, learner, result, attack)
        for (name, learner), results in found.items()
        for attack, result in ((result.name.partition(",")[0], result) for result in results)
    ]
    pacsv.write_csv(pa.Table.from_pylist(rows), folder / "figure-2.csv")
    return Made(_words(rows), (folder / "figure-2.png", folder / "figure-2.csv"))


def _audited(options: Options, folder: Path, name: str, data: Any, panel: Panel) -> tuple[AuditResult, ...]:
    """One run folder for a data set and a learner."""
    trainings = TRAININGS[options.scale]
    audits = tuple(
        Audit(
            panel.make(epsilon),
            data,
            game=Neighbours(
                trials=trainings,
                search=trainings,
                stack=max(2, trainings // 2),
                poisoning=poisoning,
                copies=copies_at(epsilon),
                scale=panel.scale,
            ),
            attack=ATTACK,
            split=WHOLE,
            name=f"{attack}, epsilon={epsilon:g}",
        )
        for attack, poisoning in panel.attacks.items()
        for epsilon in EPSILONS[options.scale]
    )
    place = f"{name}-{panel.learner.replace(' ', '-')}"
    options.say(f"{name}, {panel.learner}: {len(audits)} audits of {2 * trainings:,} trainings")
    spec = AuditSpec(audits, name=place, seed=options.seed, run=options.run)
    return audit(spec, output=folder / place, listeners=options.listeners, quiet=not options.listeners).results


def _row(data: str, learner: str, result: AuditResult, attack: str) -> dict[str, Any]:
    return {
        "data": data,
        "learner": learner,
        "attack": attack,
        "epsilon": result.claimed.epsilon,
        "steps": result.compared.steps,
        "detected": result.epsilon / result.compared.steps,
        "verdict": result.verdict.value,
    }


def _words(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["Detected epsilon of one record, by what is claimed (steps of the claim's relation between the worlds):"]
    for data, learner, attack in dict.fromkeys((row["data"], row["learner"], row["attack"]) for row in rows):
        own = [row for row in rows if (row["data"], row["learner"], row["attack"]) == (data, learner, attack)]
        cells = "  ".join(f"{row['epsilon']:g}: {format_lower(row['detected'])} ({row['steps']})" for row in own)
        lines.append(f"  {data:<14}{learner:<23}{attack:<21}{cells}")
    violations = [row for row in rows if row["verdict"] == "VIOLATION"]
    lines.append(f"{len(violations)} of {len(rows)} audits find a violation; honest learners, 5 % each at most.")
    return "\n".join(lines)


def _drawn(found: Mapping[tuple[str, str], Sequence[AuditResult]], names: Sequence[str]) -> Figure:
    figure, panels = style.grid(len(names), len(PANELS), width=3.8 * len(PANELS), height=4.1 * len(names))
    for row, name in enumerate(names):
        for column, panel in enumerate(PANELS):
            axes = panels[row][column]
            draw_lines(axes, lines_of(found[name, panel.learner]))
            axes.set_title(f"{name}: {panel.learner}", fontsize=10)
    return figure


@register("reproduction", "ml-audit figure-3", source="Lu et al. (2022), Figure 3")
def figure_3(options: Options) -> Made:
    """How far from a sphere each data set is, what ClipBKD's record moves there, and what the influential one moves."""
    rows: list[dict[str, Any]] = []
    for name, data in {**data_sets(options), "wine": _first_class(Wine())}.items():
        loaded = data if isinstance(data, Examples) else data.load(seed=options.seed)
        examples = as_numbers(loaded, "ball")
        surrogate = Surrogate.of(examples, 1, PENALTY)
        flat = features_of(examples).astype(np.float64)
        values = np.linalg.svd(flat - flat.mean(0), compute_uv=False)
        values = values[values > 1e-9 * values[0]]
        rng = np.random.default_rng(options.seed)
        attacks: dict[str, Poisoning] = {"clip-bkd": ClipBackdoorPair(), "influence": Influence(PENALTY)}
        moved = {
            attack: _moved(surrogate, poisoning.worlds(examples, 1, rng), len(examples))
            for attack, poisoning in attacks.items()
        }
        rows.append({"data": name, "non-sphericity": float(values[0] / values[-1]), **moved})
    folder = options.output / "figure-3"
    figure, (left, right) = style.canvases(2, width=9.6, height=4.0)
    for row in rows:
        left.plot(row["non-sphericity"], row["clip-bkd"], "o", color=style.OTHER)
        left.annotate(
            row["data"], (row["non-sphericity"], row["clip-bkd"]), fontsize=9, xytext=(5, 4), textcoords="offset points"
        )
    left.set_xscale("log")
    left.set_xlabel("largest over smallest singular value")
    left.set_ylabel("how far the record moves the coefficients")
    place = np.arange(len(rows))
    right.bar(place - 0.2, [row["clip-bkd"] for row in rows], 0.4, color=style.OTHER, label="ClipBKD")
    right.bar(place + 0.2, [row["influence"] for row in rows], 0.4, color=style.MEMBER, label="influence")
    right.set_xticks(place, [row["data"] for row in rows])
    right.legend(fontsize=8.5)
    style.save(figure, folder, "figure-3")
    pacsv.write_csv(pa.Table.from_pylist(rows), folder / "figure-3.csv")
    lines = ["Data, ratio of singular values, what ClipBKD's record moves, what the influential one moves (n times):"]
    lines += [
        f"  {row['data']:<15}{row['non-sphericity']:>9.1f}{row['clip-bkd']:>9.3f}{row['influence']:>9.3f}"
        for row in rows
    ]
    return Made("\n".join(lines), (folder / "figure-3.png", folder / "figure-3.csv"))


def _moved(surrogate: Surrogate, worlds: Worlds, n: int) -> float:
    """By how much the record that world 1 alone holds moves the weights, to first order, times the rows of the data."""
    poisoned: Examples = worlds.rows.take(worlds.in_one & ~worlds.in_zero)
    row, label = features_of(poisoned)[0].astype(np.float64), poisoned.labels[0]
    return float(n * np.linalg.norm(surrogate.influence(row, bool(label == 1))))


@register("reproduction", "ml-audit figure-4", source="Lu et al. (2022), Figure 4a")
def figure_4(options: Options) -> Made:
    """Naive Bayes: the attack on the classes, the one on the means, and counts that tell how many records there are."""
    folder, trainings = options.output / "figure-4", TRAININGS[options.scale]
    lines: dict[str, tuple[Any, Poisoning]] = {
        "classes and means": (_bayes, CornerFlip()),
        "means alone": (_bayes, SwapX()),
        "counts that sum to n": (NaiveBayesExposedSize, Remove()),
    }
    audits = tuple(
        Audit(
            make(epsilon),
            Iris(),
            game=Neighbours(
                trials=trainings,
                search=trainings,
                stack=max(2, trainings // 2),
                poisoning=poisoning,
                copies=1 if isinstance(poisoning, Remove) else copies_at(epsilon),
            ),
            attack=ATTACK,
            split=WHOLE,
            name=f"{name}, epsilon={epsilon:g}",
        )
        for name, (make, poisoning) in lines.items()
        for epsilon in EPSILONS[options.scale]
    )
    options.say(f"naive Bayes on iris: {len(audits)} audits of {2 * trainings:,} trainings")
    spec = AuditSpec(audits, name="naive Bayes on iris", seed=options.seed, run=options.run)
    run = folder / "iris"
    results = audit(spec, output=run, listeners=options.listeners, quiet=not options.listeners).results
    figure, axes = style.canvas(6.0, 4.4)
    draw_lines(axes, lines_of(results))
    style.save(figure, folder, "figure-4")
    rows = [_row("iris", "naive Bayes", result, result.name.partition(",")[0]) for result in results]
    pacsv.write_csv(pa.Table.from_pylist(rows), folder / "figure-4.csv")
    return Made(_words(rows), (folder / "figure-4.png", folder / "figure-4.csv"))
