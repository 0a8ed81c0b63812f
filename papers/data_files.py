"""Write the papers' files of `docs/data` from the results of `dpaudit reproduce`.

    python -m papers.data_files                      # list the files and the commands behind them
    python -m papers.data_files RESULTS FILE.csv     # write one file and its line in index.csv

RESULTS is the folder at `--output` of those commands, by default `reproduced`. Results of one figure that must not mix
have separate folders inside RESULTS, named in the commands.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpaudit.engine.answer.sensitivity import ceiling_bound
from dpaudit.engine.games.proxies import CalibratedModel
from dpaudit.engine.games.reference import CoinResponse, Reference
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.estimators.two_world.ratio import detectable_ceiling
from dpaudit.mechanisms.learners.pate import PateFm
from papers.attacks_compared import condition
from papers.image_tables import COLOUR_SPLIT, SMALL_IMAGES, pate_fm_hours
from papers.label_inference import FITTED_FROM, PRINTED_RESPONSE, RATE_SIZES, RELEASES
from papers.label_tables import spread
from papers.ml_audit_dp_sgd import by_setting
from papers.ml_audit_panels import TRAININGS
from papers.private_prediction import KINDS_OF_ORDERS
from papers.uncorrected_bounds import LARGEST_NOISE, PUBLISHED, RELEASED_FLOOR
from tools.rows import Row, record, setting

Table = Sequence[Mapping[str, str]]
NONE = "–"
ADVERSARIAL = ("Nat-AdvQ", "Pois-AdvQ")


@dataclass(frozen=True)
class Source:
    """Source of a data file.

    Attributes:
        program: The commands, joined by "; ".
        rows: Function from the folder with the results to the measurements.
    """

    program: str
    rows: Callable[[Path], Iterator[Row]]


def table(path: Path) -> Table:
    """Return the rows of a reproduction's table.

    Raises: SystemExit if the file is missing.
    """
    if not path.is_file():
        sys.exit(f"{path} must be there; run the commands that `python -m papers.data_files` prints, with --output")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def reproduced_table(folder: Path, paper: str, item: str, stem: str = "") -> Table:
    """Return the table that `dpaudit reproduce PAPER ITEM --output FOLDER` wrote."""
    return table(folder / paper / item / f"{stem or item}.csv")


def number(text: str) -> str:
    """Format a claimed epsilon for the pages."""
    return "∞" if math.isinf(float(text)) else f"{float(text):g}"


def bound(text: str, digits: int = 3) -> str:
    """Format a lower bound, never rounded up."""
    return format_lower(float(text), digits)


def studied(utility: str, folder: Path, tables: tuple[str, str], **conditions: str) -> Iterator[Row]:
    """Yield the bounds of learners at several values of epsilon, and the utility of the same models.

    One training has its deviation over replays. Several have the median over trainings, and (least, largest).
    """
    bounds, utilities = (reproduced_table(folder, "observational-label", item) for item in tables)
    for cell in dict.fromkeys((row["learner"], row["epsilon"]) for row in bounds):
        trained, predicted = ([row for row in rows if _cell_of(row) == cell] for rows in (bounds, utilities))
        learner, epsilon = cell[0], number(cell[1])
        for source, (value, interval, trials) in _bounds_of(trained).items():
            key = setting({**conditions, "learner": learner, "source": source, "epsilon": epsilon})
            yield Row(key, "bound on epsilon", value, interval, trials)
        for source, value, interval in _utilities_of(predicted, utility):
            key = setting({**conditions, "learner": learner, "source": source, "epsilon": epsilon})
            yield Row(key, utility, value, interval)


def _cell_of(row: Mapping[str, str]) -> tuple[str, str]:
    return row["learner"], row["epsilon"]


def _bounds_of(trained: Table) -> dict[str, tuple[str, str, str]]:
    """Return value, interval and trials of each kind of bound at one epsilon."""
    informative = [row for row in trained if row["failed"] == "" and row["constant_model"] == "false"]
    trials = "100 replays" if len(trained) == 1 else f"{len(informative)} trainings, 100 replays each"
    cells = {"paper": (*_printed(trained[0]), "")}
    for source, column in BOUNDS.items():
        if not informative:
            cells[source] = (NONE, "", trials)
            continue
        digits = (lambda value: f"{value:.2f}") if column in UNCORRECTED else (lambda value: bound(str(value), 2))
        middle, least, largest = map(digits, spread([float(row[column]) for row in informative]))
        deviation = f"{column}_deviation"
        single = f"± {float(informative[0][deviation]):.2f}" if deviation in informative[0] else ""
        cells[source] = (middle, single if len(trained) == 1 else f"({least}, {largest})", trials)
    return cells


UNCORRECTED = ("as_published", "best_fraction", "constant_predictor")
BOUNDS = {
    "ours, as published": "as_published",
    "ours, best fraction": "best_fraction",
    "ours, if the proxy is right": "bound",
    "rows never seen": "never_seen",
    "beyond those": "beyond",
    "constant predictor": "constant_bound",
    "constant predictor, as published": "constant_predictor",
}


def _utilities_of(predicted: Table, utility: str) -> Iterator[tuple[str, str, str]]:
    """Yield source, value and interval of the utility at one epsilon, as printed and ours."""
    factor, digits, key = (1.0, 3, "test_log_loss") if utility == "log-loss" else (100.0, 1, "test_accuracy")
    paper = float(predicted[0]["paper"])
    yield "paper", NONE if math.isnan(paper) else f"{paper:.3f}" if utility == "log-loss" else f"{paper:g}", ""
    values = [factor * float(row[key]) for row in predicted if row["failed"] == ""]
    if not values:
        yield "ours", NONE, ""
        return
    middle, least, largest = (f"{value:.{digits}f}" for value in spread(values))
    constant = " (constant)" * all(row["constant_model"] == "true" for row in predicted)
    yield "ours", middle + constant, f"({least}, {largest})" if len(predicted) > 1 else ""


def _printed(row: Mapping[str, str]) -> tuple[str, str]:
    value = float(row["paper"])
    return (NONE, "") if math.isnan(value) else (f"{value:.2f}", f"± {float(row['paper_deviation']):.2f}")


PAPER_CANARIES, GUESSED, PRINTED_PATE = 200_000, 2_000, 1.6
"""Canaries of Table 2, 1 % of them, and its bound for PATE without noise."""


def clicks(folder: Path) -> Iterator[Row]:
    yield from studied("log-loss", folder, ("table-2", "table-5"), log="Kaggle, 3,200 rows")
    released = {"source": "the authors' package, nothing shown", "delta": "1e-5", "largest noise": f"{LARGEST_NOISE:g}"}
    yield Row(setting(released), "bound on epsilon", bound(str(RELEASED_FLOOR)))
    least = GUESSED // 2
    right = np.arange(least, GUESSED + 1)
    needed = least + int(
        np.argmax(PUBLISHED.epsilon(np.full(right.size, GUESSED), right, PAPER_CANARIES, 0.95) >= PRINTED_PATE)
    )
    family = {"source": "Algorithm 3, Gaussian family"}
    key = setting(
        {**family, "canaries": f"{PAPER_CANARIES:,}", "guesses": f"{GUESSED:,}", "bound": f"{PRINTED_PATE:g}"}
    )
    yield Row(key, "right guesses needed", f"{needed:,}")


def pictures(folder: Path) -> Iterator[Row]:
    yield from studied("test accuracy, %", folder, ("table-1", "table-4"))
    reference_share = (1 - CalibratedModel().held_out) * COLOUR_SPLIT.reference
    for what, share in {
        "images trained on": COLOUR_SPLIT.target,
        "images of the reference model": reference_share,
    }.items():
        yield Row(setting({"data": "CIFAR-10"}), what, f"{share * SMALL_IMAGES:,.0f}")
    key = setting({"at the paper's size": "PATE-FM", "teachers of one epsilon": str(PateFm(1.0).teachers)})
    yield Row(key, "GPU hours, counted", str(pate_fm_hours()))


def factors(folder: Path) -> Iterator[Row]:
    for row in reproduced_table(folder, "observational-label", "factors"):
        key = setting({"training": row["setting"]})
        for what in ("if the proxy is right", "rows never seen", "beyond those", "constant predictor"):
            yield Row(key, what, bound(row[what], 2), "", "100 replays")
        for what in ("as published", "best fraction", "constant predictor, as published"):
            yield Row(key, what, f"{float(row[what]):.2f}", "", "100 replays")
        yield Row(key, "test log-loss", f"{float(row['test_log_loss']):.3f}")
        yield Row(key, "test accuracy, %", f"{100 * float(row['test_accuracy']):.1f}")


def attacks_compared(folder: Path) -> Iterator[Row]:
    for row in reproduced_table(folder, "observational-label", "figure-1"):
        key = setting({"learner": row["learner"], "epsilon": number(row["epsilon"]), "attack": row["attack"]})
        spread = f"± {float(row['as_published_deviation']):.3f}"
        what = condition(row["observational"] == "true", row["conditional"] == "true")
        yield Row(key, what, bound(row["bound"]))
        yield Row(key, "as published (not valid)", f"{float(row['as_published']):.3f}", spread)
        if row["never_seen"] not in ("", "nan"):
            labels = row["attack"].startswith("label")
            yield Row(key, "rows never seen" if labels else "reference model alone", bound(row["never_seen"]))
        if row["constant_predictor"] not in ("", "nan"):
            yield Row(key, "constant predictor", bound(row["constant_predictor"]))
            yield Row(key, "constant predictor, as published", f"{float(row['constant_published']):.3f}")
        yield Row(key, "test log-loss", f"{float(row['test_log_loss']):.3f}")


SCORES = {
    ("published score", "ground truth"): "published score, true posterior",
    ("published score", "logistic regression"): "published score, logistic regression",
    ("likelihood ratio", "ground truth"): "likelihood ratio (ours)",
}


def randomized_response(folder: Path) -> Iterator[Row]:
    means: list[bool] = []
    for guessed, item in (("0.1 %", "figure-2"), ("1 %", "figure-3")):
        for row in reproduced_table(folder, "observational-label", item):
            key = setting({"guessed": guessed, "k": row["classes"], "epsilon": number(row["epsilon"])})
            spread = f"± {float(row['deviation']):.3f}"
            yield Row(key, SCORES[row["attack"], row["proxy"]], f"{float(row['mean']):.3f}", spread, "100")
            means.append(float(row["mean"]) > float(row["epsilon"]))
            if row["attack"] == "likelihood ratio":
                yield Row(key, "valid bound", bound(row["median_rule"]), "", "100")
    yield Row("", "means above epsilon", str(sum(means)), "", str(len(means)))


INTERVALS = {"clopper-pearson": "Clopper-Pearson", "jeffreys": "Jeffreys", "bayesian": "Bayesian"}
VALID = re.compile(r"^- ([\w-]+), (No DP|ε = 8): ε ≥ ([\d.]+) at 95% .*accuracy ([\d.]+)%", re.MULTILINE)


def bayesian(folder: Path) -> Iterator[Row]:
    both, clothes = (place / "bayesian" / "table-2-small" for place in (folder, folder / "fashion"))
    parts = (("CIFAR-10", both, "images"), ("Fashion-MNIST", clothes, "images"), ("SST-2", both, "text"))
    for data, place, kind in parts:
        for row in table(place / "table-2.csv"):
            if row["data"] == kind and not (data == "Fashion-MNIST" and row["threshold"] == "paper"):
                yield from _interval(data, row)
    for data, place, _ in parts:
        for name, learner, least, right in VALID.findall((place / "table-2.md").read_text(encoding="utf-8")):
            if name == data.lower():
                key = setting({"data": data, "learner": learner})
                yield Row(key, "bound over all thresholds, 95 %", least, "", "1,024")
                yield Row(key, "right, %", right)


def _interval(data: str, row: Mapping[str, str]) -> Iterator[Row]:
    key, method = setting({"data": data, **{name: row[name] for name in ("learner", "threshold")}}), row["method"]
    lower, upper, width = (_three(row[name]) for name in ("lower", "upper", "width"))
    yield Row(key, INTERVALS[method], "", f"({lower}, {upper})")
    yield Row(key, f"{INTERVALS[method]}, width", width)
    if method != "clopper-pearson":
        less = float(row["reduction"])
        yield Row(key, f"{INTERVALS[method]}, vs. CP", NONE if math.isnan(less) else f"−{less:.0%}")


NARROW_WIDTH = 0.3
"""Width of an interval of ±0.15, for which Figure 4 counts samples."""


def bayesian_intervals(folder: Path) -> Iterator[Row]:
    """Yield the samples that a narrow interval needs, and by how much the Bayesian interval is narrower."""
    rows = reproduced_table(folder, "bayesian", "figure-4")
    for method, name in INTERVALS.items():
        wide = [float(row[f"{method} upper"]) - float(row[f"{method} lower"]) > NARROW_WIDTH for row in rows]
        needed = rows[len(wide) - wide[::-1].index(True)]["samples"]
        yield Row(setting({"figure": "4"}), f"samples, {name}", f"{float(needed):.0f}")
    rows = reproduced_table(folder, "bayesian", "figure-5")
    for region in dict.fromkeys(row["region"] for row in rows):
        key = setting({"figure": "5", "rates": region})
        for method, name in INTERVALS.items():
            if method != "bayesian":
                less = [1 - float(row["bayesian"]) / float(row[method]) for row in rows if row["region"] == region]
                for end, value in (("least", min(less)), ("most", max(less))):
                    yield Row(key, f"narrower than {name}, {end}, %", f"{100 * value:.1f}")


def _three(text: str) -> str:
    return "∞" if math.isinf(float(text)) else f"{float(text):.3g}"


def bayesian_figures(folder: Path) -> Iterator[Row]:
    rows = reproduced_table(folder, "bayesian", "figure-2")
    alarms = [float(row["false alarms"]) for row in rows]
    for curve in ("one point", "dp-sgd", "gaussian"):
        share = 1 - 2 * float(np.trapezoid([float(row[curve]) for row in rows], alarms))
        yield Row(setting({"figure": "2", "claim": curve}), "allowed share of the square, %", f"{100 * share:.1f}")
    for row in reproduced_table(folder, "bayesian", "figure-3"):
        key = setting({"figure": "3", "of": row["of"]})
        yield Row(key, "posterior mass, %", f"{100 * float(row['posterior mass']):.1f}")
        yield Row(key, "interval", "", f"({float(row['lower']):.3f}, {float(row['upper']):.3f})")
    for row in reproduced_table(folder, "bayesian", "figure-7"):
        key = setting({"figure": "7", "trials": f"{float(row['trials']):,.0f}"})
        yield Row(key, "interval", "", f"({float(row['lower']):.3f}, {float(row['upper']):.3f})")


MECHANISMS = {
    "randomized-response": "response",
    "llp": "counts",
    "llp-laplace": "Laplace",
    "llp-geometric": "geometric",
}
TABLES = {"gaussian-mixture": "mixture", "criteo-synthetic": "generated clicks", "criteo": "Criteo"}
KINDS = {"multiplicative": ("median difference, nats", 2), "additive": ("median difference", 3)}


def label_inference_figure_1(folder: Path) -> Iterator[Row]:
    """Yield advantages by mechanism and data set; the one that the paper prints is of a data set it does not name."""
    key = setting({"mechanism": "response", "setting": "ε = 1", "data": "not named"})
    yield Row(key, "additive, printed", f"{PRINTED_RESPONSE:.5f}")
    for row in reproduced_table(folder, "label-inference", "figure-1"):
        mechanism, _, fields = row["mechanism"].partition(", ")
        key = setting({"mechanism": MECHANISMS[mechanism], "setting": fields, "data": _named(row["data"])})
        yield Row(key, "additive", f"{float(row['additive advantage']):.5f}")
        yield Row(key, "multiplicative", _three(row["multiplicative advantage"]))


def label_inference_rates(folder: Path) -> Iterator[Row]:
    table_rows = reproduced_table(folder, "label-inference", "rates")
    for row in (row for row in table_rows if row["epsilon"] not in ("", "nan")):
        key = setting({"theorem": row["theorem"], "priors": row["priors"], "epsilon": number(row["epsilon"])})
        yield Row(key, "advantage", f"{float(row['advantage']):.3g}")
    rows = [row for row in table_rows if row["epsilon"] in ("", "nan")]
    for row in rows:
        key = setting({"theorem": row["theorem"], "priors": row["priors"], "bag size": row["size"]})
        yield Row(key, "advantage", "∞" if math.isinf(float(row["advantage"])) else f"{float(row['advantage']):.3g}")
    for theorem, priors in dict.fromkeys((row["theorem"], row["priors"]) for row in rows):
        slope = next(row["slope"] for row in rows if (row["theorem"], row["priors"]) == (theorem, priors))
        key = setting({"theorem": theorem, "priors": priors})
        yield Row(key, "slope on logarithmic axes", f"{float(slope):.3f}", "", f"k = {FITTED_FROM} to {RATE_SIZES[-1]}")


def label_inference_figure_2(folder: Path) -> Iterator[Row]:
    rows = reproduced_table(folder, "label-inference", "figure-2")
    for data in dict.fromkeys(row["data"] for row in rows):
        key, data_rows = setting({"figure": "2", "data": _named(data)}), [row for row in rows if row["data"] == data]
        for kind, as_text in (("multiplicative", _three), ("additive", lambda text: f"{float(text):.5f}")):
            for row in data_rows:
                name = MECHANISMS[row["mechanism"].partition(",")[0]]
                advantage = as_text(row[f"{kind} advantage"])
                yield Row(key, f"{name}, {kind}", advantage, "", f"{RELEASES['small']} releases")


def label_inference_figure_3(folder: Path) -> Iterator[Row]:
    rows = reproduced_table(folder, "label-inference", "figure-3")
    for data in dict.fromkeys(row["data"] for row in rows):
        key = setting({"figure": "3", "data": _named(data)})
        for kind, (what, digits) in KINDS.items():
            both = ((row[f"{kind} advantage"], row[f"response, {kind}"]) for row in rows if row["data"] == data)
            pairs = [
                (float(advantage), float(response)) for advantage, response in both if not math.isnan(float(response))
            ]
            if kind == "multiplicative":
                yield Row(key, "settings compared", str(len(pairs)))
            yield Row(
                key, f"response tells less, {kind}", str(sum(response < advantage for advantage, response in pairs))
            )
            if pairs:
                gap = float(np.median([advantage - response for advantage, response in pairs]))
                yield Row(key, what, f"{gap:+.{digits}f}")


def _named(data: str) -> str:
    name = data.removesuffix(" priors")
    return "Higgs" if ".csv" in name else TABLES.get(name, name)


def ml_audit(folder: Path) -> Iterator[Row]:
    for row in reproduced_table(folder, "ml-audit", "figure-2"):
        each = int(row["trainings"]) // 2
        key = setting({"trainings": f"{each:,} + {each:,}", **_cell(row), "attack": row["attack"], **_claimed(row)})
        yield Row(key, "detected epsilon", bound(row["detected"]))
    trainings = TRAININGS["paper"]
    most = {
        "Katz-log": float(detectable_ceiling(trainings // 2, confidence=0.95)),
        "fair coins": ceiling_bound(FairCoins(), Reference(CoinResponse(), trainings, "trials")).lower,
    }
    for name, value in most.items():
        yield Row(setting({"bound": name}), "ceiling", bound(str(value)))


def ml_audit_seconds(folder: Path) -> Iterator[Row]:
    """Yield the seconds of all units of each data set and learner, from the events in the run folders."""
    place = folder / "ml-audit" / "figure-2"
    for data, learner in dict.fromkeys((row["data"], row["learner"]) for row in table(place / "figure-2.csv")):
        events = place / f"{data}-{learner}".replace(" ", "-") / "events.jsonl"
        logged_events = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
        seconds = sum(event["seconds"] for event in logged_events if event["kind"] == "unit-done")
        yield Row(setting({"data": data, "learner": learner}), "seconds", f"{seconds:.0f}")


def _cell(row: Mapping[str, str]) -> dict[str, str]:
    return {"data": row["data"], "learner": row["learner"]}


def _claimed(row: Mapping[str, str]) -> dict[str, str]:
    return {"claimed": number(row["epsilon"])}


def ml_audit_seeds(folder: Path) -> Iterator[Row]:
    for row in reproduced_table(folder, "ml-audit", "figure-2-seeds"):
        key = setting({**_cell(row), "attack": row["attack"], **_claimed(row)})
        limits = f"({bound(row['least'])}, {bound(row['largest'])})"
        yield Row(key, "median", bound(row["median"]), limits, "3 seeds")
        yield Row(key, "records that change", row["copies"])
        yield Row(key, "median, records fixed", bound(row["median, copies fixed"]), "", "3 seeds")


def ml_audit_figure_3(folder: Path) -> Iterator[Row]:
    rows = reproduced_table(folder, "ml-audit", "figure-3")
    for row in sorted(rows, key=lambda row: float(row["non-sphericity"])):
        key = setting({"data": row["data"]})
        yield Row(key, "largest over smallest singular value", f"{float(row['non-sphericity']):.1f}")
        yield Row(key, "ClipBKD", f"{float(row['clip-bkd']):.3f}")
        for attack in ("influence", "influence, either class"):
            yield Row(key, attack, f"{float(row[attack]):.3f}")


def ml_audit_figure_4(folder: Path) -> Iterator[Row]:
    for figure, item in (("4a", "figure-4"), ("4b", "figure-4b")):
        for row in reproduced_table(folder, "ml-audit", item):
            key = setting({"figure": figure, "attack": row["attack"], **_claimed(row)})
            yield Row(key, "detected epsilon", bound(row["detected"]))


def ml_audit_forests(folder: Path) -> Iterator[Row]:
    for row in reproduced_table(folder, "ml-audit", "forests"):
        selection, attack = row["attack"].split(" and ")
        key = setting({"leaves answer by": selection, "attack": attack, **_claimed(row)})
        yield Row(key, "detected epsilon", bound(row["detected"]))


def ml_audit_copies(folder: Path) -> Iterator[Row]:
    for row in reproduced_table(folder, "ml-audit", "copies"):
        key = setting({"claim": number(row["epsilon"]), "copies": row["copies"]})
        yield Row(key, "detected of one record", bound(row["detected"]), "", "3,000 fresh")


def ml_audit_coverage(folder: Path) -> Iterator[Row]:
    for row in reproduced_table(folder, "ml-audit", "coverage"):
        rates = {"p0": number(row["p0"]), "p1 / p0": number(row["ratio"])}
        key = setting({"trainings a world": f"{int(row['runs']):,}", **rates})
        for name, column in (("Katz-log", "katz-log"), ("Clopper-Pearson", "clopper-pearson")):
            yield Row(key, f"{name}, too high, %", f"{100 * float(row[column]):.2f}")


def dp_sgd(folder: Path) -> Iterator[Row]:
    rows = reproduced_table(folder, "ml-audit", "figure-8")
    seeds = len({row["seed"] for row in rows})
    for (data, epsilon, attack, name), values in by_setting(rows).items():
        key = setting({"data": data, "claim": number(epsilon), "attack": attack})
        mean, least, largest = (bound(str(value), 2) for value in values)
        yield Row(key, name, mean, f"({least}, {largest})", f"{seeds} seeds")


RENAMED = {"2-cut, as published": "2-cut as published"}


def cuts(folder: Path) -> Iterator[Row]:
    for row in reproduced_table(folder, "private-prediction", "cuts"):
        size = {"answers": f"{int(row['answers']):,}", "order": row["order"]}
        key = setting({"votes": row["votes"], "direction": row["direction"], **size})
        for column in ("exact", "2-cut, as published", "2-cut", "k-cut"):
            yield Row(key, RENAMED.get(column, column), f"{float(row[column]):.6f}")


def private_claims(folder: Path) -> Iterator[Row]:
    for row in reproduced_table(folder, "private-prediction", "claims"):
        for kind in KINDS_OF_ORDERS:
            key = setting({"predictor": row["predictor"], "minimised over": kind})
            yield Row(key, "claim", f"{float(row[kind]):.3f}", "", f"{int(row['answers']):,} answers")


def private_prediction(folder: Path) -> Iterator[Row]:
    for figure in ("2", "6"):
        for row in reproduced_table(folder, "private-prediction", f"figure-{figure}"):
            if float(row["order"]) in (2, 32):
                key = setting({"figure": figure, "order": number(row["order"])})
                for column, text in row.items():
                    if column != "order":
                        value = f"{float(text):.6f}" if float(text) else "0"
                        yield Row(key, RENAMED.get(column, column), value)
    yield from _leaks("3 and 4", folder, "figure-3", "figure-4")
    yield from _leaks("5", folder, "figure-5")
    yield from _leaks("5", folder / "own", "figure-5", on="digits (no `--data`)")
    yield from _leaks("3 and 4", folder, "lenet-5")
    yield from _leaks("5, 1,000 queries", folder / "paper", "figure-5")


def language_model(folder: Path) -> Iterator[Row]:
    """Yield the leaks of PromptPATE with a language model; `private_prediction` has a stand-in instead."""
    yield from _leaks("3 and 4", folder / "model", "figure-3", "figure-4")
    yield from private_prediction_orders(folder / "model")


def _leaks(figure: str, folder: Path, *items: str, on: str = "") -> Iterator[Row]:
    """Yield leaks by algorithm and data set, adversarial queries first; Private-kNN's rows omit the algorithm."""
    rows = [row for item in items for row in reproduced_table(folder, "private-prediction", item)]
    for algorithm, data in dict.fromkeys((row["algorithm"], row["data"]) for row in rows):
        system = on or (data if algorithm == "Private-kNN" else f"{algorithm}, {data}")
        for row in (row for row in rows if (row["algorithm"], row["data"]) == (algorithm, data)):
            who = row["adversary"] if row["adversary"] in ADVERSARIAL else f"Pois-NatQ ({row['adversary']})"
            key = setting({"figure": figure, "system": system, "adversary": who})
            size = f"{row['queries']} queries, {int(row['answers']):,} answers"
            for kind in ("claim", "data-dependent", "exact", "2-cut"):
                if row[kind] not in ("", "nan"):
                    yield Row(key, kind, f"{float(row[kind]):.3f}", "", size)
            yield Row(key, "exact RDP / claimed", f"{float(row['exact share of claim']):.3f}", "", size)


def private_prediction_orders(folder: Path) -> Iterator[Row]:
    for row in reproduced_table(folder, "private-prediction", "figures-7-to-31"):
        if float(row["order"]) in (2, 32):
            who = {"system": f"{row['algorithm']}, {row['data']}", "adversary": row["adversary"], "query": row["query"]}
            key = setting({"figure": row["figure"], **who, "order": number(row["order"])})
            for what in ("claim", "exact", "2-cut"):
                yield Row(key, what, f"{float(row[what]):.6f}")
    figures = {row["figure"] for row in reproduced_table(folder, "private-prediction", "figures-7-to-31")}
    yield Row("", "figures", str(len(figures)))


def runs(paper: str, *items: str, with_: str = "", into: str = "") -> str:
    """Return the commands that reproduce items of a paper, ready to paste."""
    output = f" --output reproduced/{into}" if into else ""
    return "; ".join(f"dpaudit reproduce {paper} {item}{with_}{output}" for item in items)


LABELS, AUDIT, PRIVATE, INFERENCE = "observational-label", "ml-audit", "private-prediction", "label-inference"
REAL, PAPER, MODEL = " --data $DATA", " --scale paper", " --data $WITH_MODEL"
KNOWN = f"{REAL} --only Beta --only mixture --only Higgs"
"""The data sets of label inference whose priors are known or soon estimated."""
CLICKS = "".join(f' --only "clicks, {learner}"' for learner in ("no privacy", "LP-1ST", "PATE"))
"""The settings of factors on clicks of few rows."""
VOTED = ("figure-3", "figure-4")
SEEDED = [f"{data}, {learner}" for data in ("iris", "wine") for learner in ("naive Bayes", "output perturbation")]
FILES = {
    "paper-attacks-compared.csv": Source(runs(LABELS, "figure-1", with_=REAL), attacks_compared),
    "paper-attacks-compared-images.csv": Source(
        runs(LABELS, "figure-1", with_=f"{REAL} --only images", into="cifar10"),
        lambda folder: attacks_compared(folder / "cifar10"),
    ),
    "paper-bayesian.csv": Source(
        f"{runs('bayesian', 'table-2', with_=MODEL)}; "
        f"{runs('bayesian', 'table-2', with_=f'{REAL} --only fashion_mnist', into='fashion')}",
        bayesian,
    ),
    "paper-bayesian-figures.csv": Source(
        runs("bayesian", *(f"figure-{number}" for number in (2, 3, 7))), bayesian_figures
    ),
    "paper-bayesian-intervals.csv": Source(runs("bayesian", "figure-4", "figure-5"), bayesian_intervals),
    "paper-click-logs.csv": Source(runs(LABELS, "table-2", "table-5", with_=REAL), clicks),
    "paper-images-cifar-10.csv": Source(runs(LABELS, "table-1", "table-4", with_=REAL), pictures),
    "paper-label-inference.csv": Source(runs(INFERENCE, "figure-2", with_=REAL), label_inference_figure_2),
    "paper-label-inference-figure-1.csv": Source(runs(INFERENCE, "figure-1", with_=KNOWN), label_inference_figure_1),
    "paper-label-inference-figure-3.csv": Source(runs(INFERENCE, "figure-3", with_=KNOWN), label_inference_figure_3),
    "paper-label-inference-rates.csv": Source(runs(INFERENCE, "rates"), label_inference_rates),
    "paper-language-model.csv": Source(
        runs(PRIVATE, *VOTED, "figures-7-to-31", with_=f"{MODEL} --only PromptPATE", into="model"), language_model
    ),
    "paper-ml-audit.csv": Source(runs(AUDIT, "figure-2", with_=f"{PAPER}{REAL}"), ml_audit),
    "paper-ml-audit-copies.csv": Source(runs(AUDIT, "copies"), ml_audit_copies),
    "paper-ml-audit-coverage.csv": Source(runs(AUDIT, "coverage"), ml_audit_coverage),
    "paper-ml-audit-dp-sgd.csv": Source(
        runs(AUDIT, "figure-8", with_=f'{REAL} --only "claim 4" --only "claim 16"'), dp_sgd
    ),
    "paper-ml-audit-dp-sgd-seeds.csv": Source(
        runs(
            AUDIT,
            "figure-8",
            with_=f'{REAL} --only "Fashion-MNIST, claim 4" --only "Fashion-MNIST, claim 16"',
            into="seeds",
        ),
        lambda folder: dp_sgd(folder / "seeds"),
    ),
    "paper-ml-audit-figure-3.csv": Source(runs(AUDIT, "figure-3", with_=f"{PAPER}{REAL}"), ml_audit_figure_3),
    "paper-ml-audit-figure-4.csv": Source(runs(AUDIT, "figure-4", "figure-4b", with_=PAPER), ml_audit_figure_4),
    "paper-ml-audit-forests.csv": Source(runs(AUDIT, "forests", with_=PAPER), ml_audit_forests),
    "paper-ml-audit-seconds.csv": Source(runs(AUDIT, "figure-2", with_=f"{PAPER}{REAL}"), ml_audit_seconds),
    "paper-ml-audit-seeds.csv": Source(
        runs(AUDIT, "figure-2-seeds", with_="".join((PAPER, *(f' --only "{cell}"' for cell in SEEDED)))),
        ml_audit_seeds,
    ),
    "paper-observational-factors.csv": Source(runs(LABELS, "factors", with_=f"{REAL}{CLICKS}"), factors),
    "paper-private-prediction.csv": Source(
        "; ".join(
            (
                runs(PRIVATE, "figure-2", "figure-6"),
                runs(PRIVATE, *VOTED, "figure-5", "lenet-5", with_=REAL),
                runs(PRIVATE, "figure-5", into="own"),
                runs(PRIVATE, "figure-5", with_=f'{PAPER}{REAL} --only SST-2 --only "AG News"', into="paper"),
            )
        ),
        private_prediction,
    ),
    "paper-private-prediction-claims.csv": Source(runs(PRIVATE, "claims"), private_claims),
    "paper-private-prediction-orders.csv": Source(
        runs(PRIVATE, "figures-7-to-31", with_=REAL), private_prediction_orders
    ),
    "paper-randomized-response.csv": Source(runs(LABELS, "figure-2", "figure-3"), randomized_response),
    "private-prediction-cuts.csv": Source(runs(PRIVATE, "cuts"), cuts),
}


def program(file: str) -> str:
    """Return the commands that produce a data file, as listed in `index.csv` and on the pages."""
    return f"{FILES[file].program}; {written_by(file)}"


def written_by(file: str) -> str:
    """Return the command that writes a data file from the folder of results."""
    return f"python -m papers.data_files reproduced {file}"


def main(*arguments: str) -> None:
    """List the files, or write one of them from a folder."""
    if not arguments:
        print("\n".join(f"{file}: {source.program}" for file, source in FILES.items()))
        return
    if len(arguments) != 2 or arguments[1] not in FILES:
        sys.exit(f"give RESULTS and one of {', '.join(FILES)}, got {' '.join(arguments)}")
    folder, file = Path(arguments[0]), arguments[1]
    record(file, list(FILES[file].rows(folder)), program(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
