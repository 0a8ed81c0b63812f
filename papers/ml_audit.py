"""ML-Audit: Figures 2, 3 and 4 of Lu et al. (2022).

Figure 2 differs from the paper in one rule. The paper tries 1, 2, 4 and 8 changed records and chooses the best number
on its search samples. Here the claim determines the number: the largest with copies times epsilon at most 4. The figure
over several seeds applies the paper's rule, with the trainings of another seed as search samples. Our learners, which
sample trainings in bulk, replace diffprivlib's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from matplotlib.figure import Figure
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.actors.unit import code_version
from dpaudit.claims import Claim
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.data.bundled import Iris, Wine
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.engine.games.neighbours.game import COPIES, Neighbours, as_numbers
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning, Worlds, features_of
from dpaudit.engine.games.neighbours.poisonings.regression import Influence, OpposingRecords, Surrogate
from dpaudit.engine.games.neighbours.poisonings.rows import (
    ClipBackdoorPair,
    CornerFlip,
    FarCorner,
    FarthestFlip,
    Remove,
)
from dpaudit.engine.report.charts import DetectedLine, draw_detected, lines_of, point_of
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import audit
from dpaudit.estimators.bound import format_lower
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.logistic_regression import PrivateLogistic
from dpaudit.mechanisms.learners.random_forest import Selection
from dpaudit.mechanisms.planted.learners import NaiveBayesExposedSize
from dpaudit.registry import register
from papers import ml_audit_panels as panels
from papers.reproduction import Options, Reproduction

FLOOR = 0.002
"""Lower end of figure 2's axis; smaller values are drawn at this height."""
SEEDS = 3
SEEDED_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Claims that are audited with several seeds and every number of changed records."""

Cell = tuple[str, Any, panels.Panel]
"""A data set by name, its data, and the learner with its attacks."""


@register("reproduction", "ml-audit figure-2", source="Lu et al. (2022), Figure 2")
def figure_2(options: Options) -> Reproduction:
    """Claimed against detected epsilon, for four learners and the attacks on each, over several data sets.

    Each data set and learner has its own run folder; the cheapest run first. Figure and table are updated after each
    run and name the missing ones. With `only`, the table retains earlier rows of other data sets and learners.
    """
    folder, sets = options.output / "figure-2", panels.data_sets(options)
    cells = options.chosen_parts(
        panels.cheapest_first(sets), lambda cell: f"{cell[0]}, {cell[2].learner}", must="a data set or a learner"
    )
    claims = [(epsilon, panels.copies_at(epsilon)) for epsilon in panels.EPSILONS[options.scale]]
    audits = sum(len(_audits(options, cell, claims)) for cell in cells)
    options.say(f"{len(cells)} run folders, {audits:,} audits of {2 * panels.TRAININGS[options.scale]:,} trainings")
    rows = _earlier_rows(folder / "figure-2.csv", options, cells)
    for number, cell in enumerate(cells, 1):
        name, _, panel = cell
        results = _run_cell(options, folder, cell, f"{number} of {len(cells)}", claims)
        rows += [
            _row(name, panel.learner, result, result.name.partition(",")[0]) | _provenance(options)
            for result in results
        ]
        style.save(_draw(rows, list(sets)), folder, "figure-2")
        pacsv.write_csv(pa.Table.from_pylist(rows), folder / "figure-2.csv")
    return Reproduction(_words(rows), (folder / "figure-2.png", folder / "figure-2.csv"))


def _provenance(options: Options) -> dict[str, Any]:
    return {"trainings": panels.TRAININGS[options.scale], "seed": options.seed, "code": code_version()}


def _earlier_rows(table: Path, options: Options, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return rows of an earlier call that this call does not rerun.

    They have the same number of trainings and the same seed; the code version may differ.
    """
    if not options.only or not table.exists():
        return []
    rerun = {(name, panel.learner) for name, _, panel in cells}
    provenance = _provenance(options)
    return [
        row
        for row in pacsv.read_csv(table).to_pylist()
        if (row["data"], row["learner"]) not in rerun
        and (row["trainings"], row["seed"]) == (provenance["trainings"], provenance["seed"])
    ]


@register("reproduction", "ml-audit figure-2-seeds", source="Lu et al. (2022), Figure 2, best of 1, 2, 4 and 8 records")
def figure_2_seeds(options: Options) -> Reproduction:
    """Median of three seeds, each with the number of changed records that is best on another seed's trainings.

    That number is therefore independent of the evaluated trainings, and every bound holds. Parts as in figure 2.
    """
    folder = options.output / "figure-2-seeds"
    table = folder / "figure-2-seeds.csv"
    cells = options.chosen_parts(
        panels.cheapest_first(panels.data_sets(options)),
        lambda cell: f"{cell[0]}, {cell[2].learner}",
        must="a data set or a learner",
    )
    claims = list(itertools.product(SEEDED_EPSILONS, COPIES))
    rows = _earlier_rows(table, options, cells)
    for number, cell in enumerate(cells, 1):
        name, _, panel = cell
        detected = np.empty((SEEDS, len(panel.attacks), len(SEEDED_EPSILONS), len(COPIES)))
        for seed in range(SEEDS):
            seed_options, place = replace(options, seed=options.seed + seed), folder / f"seed-{options.seed + seed}"
            results = _run_cell(
                seed_options, place, cell, f"{number} of {len(cells)}, seed {seed_options.seed}", claims
            )
            detected[seed] = np.reshape([point_of(result)[1] for result in results], detected.shape[1:])
        for (along, attack), (column, epsilon) in itertools.product(
            enumerate(panel.attacks), enumerate(SEEDED_EPSILONS)
        ):
            rows.append(
                {"data": name, "learner": panel.learner, "attack": attack, "epsilon": epsilon}
                | seeds_compared(detected[:, along, column], COPIES.index(panels.copies_at(epsilon)))
                | _provenance(options)
            )
        folder.mkdir(parents=True, exist_ok=True)
        pacsv.write_csv(pa.Table.from_pylist(rows), table)
    lines = [
        "Detected epsilon of one record by claimed epsilon: median of seeds (least to largest; number of records):"
    ]
    for data, learner, attack in dict.fromkeys((row["data"], row["learner"], row["attack"]) for row in rows):
        numbers = "  ".join(
            f"{row['epsilon']:g}: {format_lower(row['median'])} ({format_lower(row['least'])} to "
            f"{format_lower(row['largest'])}; {row['copies']})"
            for row in rows
            if (row["data"], row["learner"], row["attack"]) == (data, learner, attack)
        )
        lines.append(f"  {data:<17}{learner:<23}{attack:<20}{numbers}")
    style.save(_draw_seeds(rows), folder, "figure-2-seeds")
    return Reproduction("\n".join(lines), (table, folder / "figure-2-seeds.png"))


def _draw_seeds(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the median of seeds against the claim, bars from least to largest, a panel for each data set and learner."""
    cells = list(dict.fromkeys((row["data"], row["learner"]) for row in rows))
    columns = min(4, len(cells))
    figure, grid = style.grid(
        -(-len(cells) // columns), columns, width=3.4 * columns + 0.6, height=0.6 + 3.1 * -(-len(cells) // columns)
    )
    panels = [axes for panel_row in grid for axes in panel_row]
    for axes in panels[len(cells) :]:
        axes.set_axis_off()
    for cell, axes in zip(cells, panels, strict=False):
        panel_rows = [row for row in rows if (row["data"], row["learner"]) == cell]
        for attack, colour in zip(dict.fromkeys(row["attack"] for row in panel_rows), palette.COLOURS, strict=False):
            line = [row for row in panel_rows if row["attack"] == attack]
            median = np.array([row["median"] for row in line])
            spread = [median - [row["least"] for row in line], [row["largest"] for row in line] - median]
            claims = [row["epsilon"] for row in line]
            axes.errorbar(claims, median, spread, fmt="o-", color=colour, markersize=3.5, capsize=2.5, label=attack)
        claims = sorted({row["epsilon"] for row in panel_rows})
        axes.plot(claims, claims, color=palette.INK, linewidth=1)
        axes.set_xscale("log")
        style.set_ticks(axes.xaxis, claims)
        axes.set_title(", ".join(cell), fontsize=9.5)
        axes.set_xlabel("claimed ε (line: the claim)")
        axes.set_ylabel("detected ε of one record")
        style.finish(axes, fontsize=7.5)
    return figure


def seeds_compared(detected: NDArray[np.float64], fixed: int) -> dict[str, Any]:
    """Return detected epsilons of one record over several seeds.

    The preceding seed chooses the number of changed records for each seed.

    Args:
        detected: Detected epsilon by seed and number of records, shape (seeds, numbers).
        fixed: Index of figure 2's number of records.
    """
    best = np.roll(detected, 1, axis=0).argmax(axis=1)
    values = detected[np.arange(len(detected)), best]
    return {
        "copies": " ".join(str(COPIES[place]) for place in best),
        "median": float(np.median(values)),
        "least": float(values.min()),
        "largest": float(values.max()),
        "median, copies fixed": float(np.median(detected[:, fixed])),
    }


def _audits(options: Options, cell: Cell, claims: Sequence[tuple[float, int]]) -> tuple[Audit, ...]:
    """Return the audits of a data set and a learner: each attack at each pair of claim and number of records."""
    (name, data, panel), trainings = cell, panels.TRAININGS[options.scale]
    several = len(claims) > len({epsilon for epsilon, _ in claims})
    return tuple(
        Audit(
            panel.make(epsilon),
            data,
            game=Neighbours(
                trials=trainings,
                search=trainings,
                stack=max(2, trainings // 2),
                poisoning=poisoning,
                copies=copies,
                scale=panel.scale,
            ),
            attack=panels.attack_on(name),
            split=panels.WHOLE,
            name=f"{attack}, epsilon={epsilon:g}" + (f", copies={copies}" if several else ""),
        )
        for attack, poisoning in panel.attacks.items()
        for epsilon, copies in claims
    )


def _run_cell(
    options: Options, folder: Path, cell: Cell, number: str, claims: Sequence[tuple[float, int]]
) -> tuple[AuditResult, ...]:
    """Run the audits of a data set and a learner in one run folder, without figures of single audits."""
    name, _, panel = cell
    audits = _audits(options, cell, claims)
    place = f"{name}-{panel.learner}".replace(" ", "-")
    options.say(f"{number}: {name}, {panel.learner}, {len(audits)} audits")
    spec = AuditSpec(audits, name=place, seed=options.seed, run=replace(options.run, figures=False))
    return audit(spec, output=folder / place, listeners=options.listeners, quiet=not options.listeners).results


def _row(data: str, learner: str, result: AuditResult, attack: str) -> dict[str, Any]:
    claimed, detected, most = point_of(result)
    return {
        "data": data,
        "learner": learner,
        "attack": attack,
        "epsilon": claimed,
        "steps": result.compared.steps,
        "detected": detected,
        "most": most,
        "verdict": result.verdict.value,
    }


def _words(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["Detected epsilon of one record by claimed epsilon (steps of the claim's relation between the worlds):"]
    for data, learner, attack in dict.fromkeys((row["data"], row["learner"], row["attack"]) for row in rows):
        line_rows = [row for row in rows if (row["data"], row["learner"], row["attack"]) == (data, learner, attack)]
        cells = "  ".join(f"{row['epsilon']:g}: {format_lower(row['detected'])} ({row['steps']})" for row in line_rows)
        lines.append(f"  {data:<17}{learner:<23}{attack:<28}{cells}")
    violations = [row for row in rows if row["verdict"] == "VIOLATION"]
    lines.append(f"{len(violations)} of {len(rows)} audits find a violation; honest learners, 5 % each at most.")
    return "\n".join(lines)


def _draw(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Figure:
    """Draw a panel for each data set and learner; panels without rows are labelled "not run"."""
    figure, places = style.grid(len(names), len(panels.PANELS), width=3.4 * len(panels.PANELS), height=2.9 * len(names))
    attacks = dict.fromkeys(attack for panel in panels.PANELS for attack in panel.attacks)
    colours = dict(zip(attacks, palette.COLOURS, strict=False))
    keys: dict[str, Any] = {}
    highest = max((row["epsilon"] for row in rows), default=1.0)
    for along, name in enumerate(names):
        for column, panel in enumerate(panels.PANELS):
            axes = places[along][column]
            title = f"{name}: {panel.learner}"
            lines = _lines([row for row in rows if (row["data"], row["learner"]) == (name, panel.learner)])
            if not lines:
                axes.set_axis_off()
                axes.set_title(title, fontsize=10)
                axes.text(0.5, 0.5, "not run", ha="center", va="center", transform=axes.transAxes)
                continue
            draw_detected(axes, lines, colours, FLOOR)
            axes.set(xlabel="", ylabel="", ylim=(0.8 * FLOOR, 1.3 * highest))
            axes.set_title(title, fontsize=10)
            handles, labels = axes.get_legend_handles_labels()
            keys |= dict(zip(labels, handles, strict=True))
    figure.supxlabel("claimed ε of one record", fontsize=10)
    figure.supylabel("detected ε of one record (open: nothing)", fontsize=10)
    figure.legend(list(keys.values()), list(keys), loc="outside upper center", ncols=5, fontsize=9)
    return figure


def _lines(rows: Sequence[Mapping[str, Any]]) -> list[DetectedLine]:
    return [
        DetectedLine(
            attack,
            tuple((row["epsilon"], row["detected"], row["most"]) for row in rows if row["attack"] == attack),
        )
        for attack in dict.fromkeys(row["attack"] for row in rows)
    ]


@register("reproduction", "ml-audit figure-3", source="Lu et al. (2022), Figure 3")
def figure_3(options: Options) -> Reproduction:
    """Non-sphericity of each data set, and the effect of ClipBKD's record and of the influential record."""
    rows: list[dict[str, Any]] = []
    for name, data in {**panels.data_sets(options), "wine": panels.first_class(Wine())}.items():
        loaded = data if isinstance(data, Examples) else data.load(seed=options.seed)
        examples = as_numbers(loaded, "ball")
        surrogate = Surrogate.fit(examples, 1, panels.PENALTY)
        flat = features_of(examples).astype(np.float64)
        values = np.linalg.svd(flat - flat.mean(0), compute_uv=False)
        values = values[values > 1e-9 * values[0]]
        rng = np.random.default_rng(options.seed)
        influence = Influence(panels.PENALTY)
        attacks: dict[str, Poisoning] = {
            "clip-bkd": ClipBackdoorPair(),
            "influence": influence,
            "influence, either class": replace(influence, either_class=True),
        }
        moved = {
            attack: _moved(surrogate, poisoning.worlds(examples, 1, rng), len(examples))
            for attack, poisoning in attacks.items()
        }
        rows.append({"data": name, "non-sphericity": float(values[0] / values[-1]), **moved})
    figure, (scatter, bars) = style.canvases(2, width=9.6, height=4.0)
    for row in rows:
        scatter.plot(row["non-sphericity"], row["clip-bkd"], "o", color=palette.OTHER)
        far = row["non-sphericity"] > 50
        scatter.annotate(
            row["data"],
            (row["non-sphericity"], row["clip-bkd"]),
            fontsize=9,
            xytext=(-5 if far else 5, 4),
            textcoords="offset points",
            ha="right" if far else "left",
        )
    scatter.set_xscale("log")
    scatter.set_xlabel("largest over smallest singular value")
    scatter.set_ylabel("how far the record moves the coefficients")
    place = np.arange(len(rows))
    bars.bar(place - 0.2, [row["clip-bkd"] for row in rows], 0.4, color=palette.OTHER, label="ClipBKD")
    bars.bar(place + 0.2, [row["influence"] for row in rows], 0.4, color=palette.MEMBER, label="influence")
    bars.set_xticks(place, [row["data"] for row in rows], rotation=20, ha="right")
    bars.legend(fontsize=8.5)
    lines = [
        "Data, ratio of singular values, what ClipBKD's record moves (n times), the influential one, and the one of "
        "either class:"
    ]
    lines += [
        f"  {row['data']:<15}{row['non-sphericity']:>9.1f}{row['clip-bkd']:>9.3f}{row['influence']:>9.3f}"
        f"{row['influence, either class']:>9.3f}"
        for row in rows
    ]
    return options.publish("figure-3", lines, rows, figure=figure)


def _moved(surrogate: Surrogate, worlds: Worlds, n: int) -> float:
    """Return the first-order shift of the weights by the record that only world 1 holds, times the number of rows."""
    poisoned: Examples = worlds.rows.take(worlds.in_d_prime & ~worlds.in_d)
    row, label = features_of(poisoned)[0].astype(np.float64), poisoned.labels[0]
    return float(n * np.linalg.norm(surrogate.influence(row, bool(label == 1))))


@register("reproduction", "ml-audit figure-4", source="Lu et al. (2022), Figure 4a")
def figure_4(options: Options) -> Reproduction:
    """Naive Bayes: attacks on the classes and on the means, and counts that reveal the number of records."""
    lines: dict[str, tuple[Any, Poisoning]] = {
        "classes and means": (panels.bayes, CornerFlip()),
        "means alone": (panels.bayes, FarCorner()),
        "counts that sum to n": (NaiveBayesExposedSize, Remove()),
    }
    audits = tuple(
        _iris_audit(make(epsilon), poisoning, name, options, epsilon, data=Iris())
        for name, (make, poisoning) in lines.items()
        for epsilon in panels.EPSILONS[options.scale]
    )
    return _on_iris(audits, "naive Bayes", options, "figure-4")


@dataclass(frozen=True)
class OneScore:
    """A regression that reveals one number only: its answer at a point less its answer at zero.

    Attributes:
        learner: The regression, of two classes.
    """

    learner: PrivateLogistic

    def claim(self) -> Claim:
        """Return the learner's claim."""
        return self.learner.claim()

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """Return the difference of the logits at the first point and at zero, shape (count, 1)."""
        weights = self.learner.sample_summaries(train, points, count, seed=seed, compute=compute)
        at_point, zero = self.learner.rows(np.stack([points[0], np.zeros_like(points[0])]))
        score: NDArray[np.float64] = (weights @ (at_point - zero))[:, None]
        return score


@register("reproduction", "ml-audit figure-4b", source="Lu et al. (2022), Figure 4b")
def figure_4b(options: Options) -> Reproduction:
    """Logistic regression: from ClipBKD and one score to crafted records and a learned output set, step by step."""
    ours = OpposingRecords(panels.PENALTY)
    lines: dict[str, tuple[Poisoning, bool]] = {
        "ClipBKD": (ClipBackdoorPair(), True),
        "ClipBKD and output set": (ClipBackdoorPair(), False),
        "our records": (ours, True),
        "our records and output set": (ours, False),
    }
    data = panels.first_class(Iris())

    def learner(epsilon: float, one_score: bool) -> Any:
        return OneScore(panels.output(epsilon)) if one_score else panels.output(epsilon)

    audits = tuple(
        _iris_audit(learner(epsilon, one_score), poisoning, name, options, epsilon, data=data, scale="ball")
        for name, (poisoning, one_score) in lines.items()
        for epsilon in panels.EPSILONS[options.scale]
    )
    return _on_iris(audits, "output perturbation", options, "figure-4b")


@register("reproduction", "ml-audit forests", source="Lu et al. (2022), Figure 2 and section 4.1, random forest")
def forests(options: Options) -> Reproduction:
    """Forests on iris, whose leaves answer by the exponential mechanism, as printed, or as diffprivlib's do."""
    data = panels.first_class(Iris())
    attacks: dict[str, Poisoning] = {"farthest-flip": FarthestFlip(), "corner-flip": CornerFlip()}
    audits = tuple(
        _iris_audit(
            replace(panels.forest(epsilon), selection=selection),
            poisoning,
            f"{selection} and {attack}",
            options,
            epsilon,
            data=data,
        )
        for selection in get_args(Selection)
        for attack, poisoning in attacks.items()
        for epsilon in panels.EPSILONS[options.scale]
    )
    return _on_iris(audits, "random forest", options, "forests")


def _iris_audit(
    mechanism: Any, poisoning: Poisoning, name: str, options: Options, epsilon: float, *, data: Any, **settings: Any
) -> Audit:
    """Return the audit of a learner on iris by a poisoning at a claim; `settings` are further fields of the game."""
    trainings = panels.TRAININGS[options.scale]
    game = Neighbours(
        trials=trainings,
        search=trainings,
        stack=max(2, trainings // 2),
        poisoning=poisoning,
        copies=1 if isinstance(poisoning, Remove) else panels.copies_at(epsilon),
        **settings,
    )
    title = f"{name}, epsilon={epsilon:g}"
    return Audit(mechanism, data, game=game, attack=panels.ATTACK, split=panels.WHOLE, name=title)


def _on_iris(audits: tuple[Audit, ...], learner: str, options: Options, stem: str) -> Reproduction:
    """Run audits of one learner on iris, and write their figure and table."""
    folder = options.output / stem
    options.say(f"{learner} on iris: {len(audits)} audits of {2 * panels.TRAININGS[options.scale]:,} trainings")
    spec = AuditSpec(audits, name=f"{learner} on iris", seed=options.seed, run=replace(options.run, figures=False))
    results = audit(spec, output=folder / "iris", listeners=options.listeners, quiet=not options.listeners).results
    figure, axes = style.canvas(6.0, 4.4)
    draw_detected(axes, lines_of(results))
    style.legend_below(figure)
    rows = [_row("iris", learner, result, result.name.partition(",")[0]) for result in results]
    return options.publish(stem, [_words(rows)], rows, figure=figure)
