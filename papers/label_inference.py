"""Label inference advantage: Figures 1 to 3 of Busa-Fekete et al. (2024), and bag sizes equivalent to an epsilon.

Each figure is one run with an audit for each setting of a mechanism on each data set. KDD12, the paper's skewed data
set, is not available. A generated click log replaces it: 100,000 rows with 3 % clicks (`CriteoSynthetic`, which draws
labels from its own law). Adult and a small sample of Criteo's log are real, and smaller.

The rates of Theorems 3.3, 3.4 and 3.7 are slopes of advantages over bag sizes, on priors that are known exactly. No
release is drawn for them: each advantage is the expected one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import quad
from scipy.special import logit
from scipy.stats import beta, binom

from dpaudit.engine.data.criteo import Criteo, CriteoSynthetic
from dpaudit.engine.data.generated import BetaPriors, GaussianMixture
from dpaudit.engine.data.labelled_files import Adult, Csv
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.engine.games.label_advantage import LabelAdvantage, Utility
from dpaudit.engine.games.proxies import CalibratedModel, TruePosterior
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import audit
from dpaudit.estimators.label_reconstruction.advantage import (
    label_privacy_ceiling,
    llp_additive_advantage,
    rr_additive_advantage,
)
from dpaudit.estimators.label_reconstruction.bags import MEASURES
from dpaudit.mechanisms.labels.proportions import GeometricProportions, LabelProportions, LaplaceProportions
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.registry import register
from papers.advantages_compared import beliefs, frontier, spreads
from papers.data.priors import OwnPriors
from papers.label_comparison import RANDOMIZED_RESPONSE, LabelStudy, MechanismSetting, label_studies
from papers.label_equivalence import (
    LEVEL,
    SIZES,
    EquivalentResponse,
    equivalence_table,
    equivalent_epsilons,
)
from papers.reproduction import Options, Reproduction

ROWS = {"small": 10_000, "paper": 100_000}
"""Rows of generated data, and the maximum for files."""
CLICKS = 100_000
"""Rows of the generated click log, at either scale."""
FEW_CLICKS = -4.9
"""Intercept of the generated click log at which 3 % of its rows are clicks."""
ESTIMATED = CalibratedModel(CatBoost(learning_rate=0.1, depth=6))
"""Estimator of priors for data whose true priors are unknown."""
RELEASES = {"small": 5, "paper": 1_000}
RUNS, RUN_ROWS = 1_000, {"small": 1_000, "paper": 10_000}
"""Independent releases of figure 1, as in the paper, and rows of each; the other rows train the model of the priors."""
PRINTED_RESPONSE = 0.00095
"""Additive advantage of randomised response at epsilon 1 on one data set, which section 3.1 does not name."""
EPSILONS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0)
BAG_SIZES = (2, 4, 8, 16, 32, 64)
NOISES = (LaplaceProportions, GeometricProportions)
NOISY_SIZES, NOISY_EPSILONS = (2, 8, 32), (0.5, 1.0, 3.0)
MIXTURE = 28
"""Features of the generated table in the frontier, as in Higgs."""


def product_advantage(share: float, size: ArrayLike) -> NDArray[np.float64]:
    """Return `llp_additive_advantage` of bags of the given sizes >= 1 if labels are independent of the features.

    With p = `share` it is min(p, 1 - p) - E min(S/k, 1 - S/k), where S is the number of positives; shape of `size`.

    Source: Busa-Fekete et al. (2024), Theorem 3.2, with the "min" that it lacks.
    """
    missed = [
        float(binom.pmf(sums := np.arange(k + 1), k, share) @ np.minimum(sums / k, 1 - sums / k))
        for k in np.ravel(size).astype(int).tolist()
    ]
    return np.asarray(np.maximum(0.0, min(share, 1 - share) - np.reshape(missed, np.shape(size))))


@register("reproduction", "label-inference figure-1", source="Busa-Fekete et al. (2024), Figure 1")
def figure_1(options: Options) -> Reproduction:
    """Beliefs before and after: LLP, RR, LLP+Lap and LLP+Geom at several settings; real data at --data are added."""
    mechanisms = [
        *(LabelProportions(size=size) for size in (2, 8, 32)),
        *(RandomizedResponse(epsilon) for epsilon in (0.5, 1.0, 2.0)),
        *(noise(size=8, epsilon=epsilon) for noise in NOISES for epsilon in (0.5, 1.0, 2.0)),
    ]
    studies = _run_studies(options, "figure-1", mechanisms, releases=RUNS, rows=RUN_ROWS[options.scale])
    reproduction = _write_figure(options, "figure-1", studies, beliefs(studies))
    responses = [
        f"{setting.advantage['additive']:.5f} on {study.data}"
        for study in studies
        for setting in study.settings
        if setting.family == RANDOMIZED_RESPONSE and setting.claimed == 1.0 and "additive" in setting.advantage
    ]
    printed = f"Response at ε = 1: {PRINTED_RESPONSE} on one data set of the paper; {', '.join(responses)}"
    return replace(reproduction, text=f"{reproduction.text}\n{printed}")


@register("reproduction", "label-inference figure-2", source="Busa-Fekete et al. (2024), Figure 2")
def figure_2(options: Options) -> Reproduction:
    """Settings of one utility on Higgs, RR 1, LLP 8, LLP+Lap and LLP+Geom (8, 1): beliefs, and both advantages."""
    noisy = [noise(size=8, epsilon=1.0) for noise in NOISES]
    mechanisms = [RandomizedResponse(1.0), LabelProportions(size=8), *noisy]
    studies = _run_studies(options, "figure-2", mechanisms, releases=RELEASES[options.scale])
    return _write_figure(options, "figure-2", studies, spreads(studies))


@register("reproduction", "label-inference figure-3", source="Busa-Fekete et al. (2024), Figure 3")
def figure_3(options: Options) -> Reproduction:
    """AUC against both advantages: 30 settings of RR, LLP, LLP+Lap and LLP+Geom, dominated ones marked."""
    small = options.scale == "small"
    learning_rates = (0.001, 0.003, 0.01) if small else Utility().learning_rates
    utility = Utility(learning_rates=learning_rates, runs=2 if small else 3)
    # A bag of few examples has few releases: more rows need fewer of them.
    studies = _run_studies(options, "figure-3", frontier_settings(), utility=utility, releases=3)
    return _write_figure(options, "figure-3", studies, frontier(studies))


def frontier_settings() -> list[Any]:
    """Return the 30 settings of the four mechanisms."""
    return [
        *(RandomizedResponse(epsilon) for epsilon in EPSILONS),
        *(LabelProportions(size=size) for size in BAG_SIZES),
        *(noise(size=size, epsilon=epsilon) for noise in NOISES for size in NOISY_SIZES for epsilon in NOISY_EPSILONS),
    ]


RATE_SIZES = tuple(2**power for power in range(1, 9))
RATE_BAGS = 1_000
"""Bags of each size, whose priors are drawn."""
FITTED_FROM = 8
"""Smallest bag size of a fit; the theorems hold up to factors that do not grow with the bag, or only with its log."""
RATE_LEVEL = 0.98
"""Level of the quantile in Theorem 3.7, 1 - delta."""
THEOREM_EXPONENT = -0.5
"""Exponent of the bag size in Theorems 3.3, 3.4 and 3.7: an upper limit, so a steeper slope agrees with it."""


@register("reproduction", "label-inference rates", source="Busa-Fekete et al. (2024), Theorems 3.3, 3.4 and 3.7")
def rates(options: Options) -> Reproduction:
    """Advantages of exact counts over bag sizes on logarithmic axes, with the slopes that three theorems bound."""
    columns = _rate_lines(np.random.default_rng(options.seed))
    rows = [
        {
            "theorem": theorem,
            "priors": priors,
            "size": size,
            "epsilon": math.nan,
            "advantage": float(value),
            "slope": slope(values),
        }
        for (theorem, priors), values in columns.items()
        for size, value in zip(RATE_SIZES, values, strict=True)
    ]
    rows += [
        {
            "theorem": "3.5",
            "priors": f"Beta({first}, {second})",
            "size": 1,
            "epsilon": epsilon,
            "advantage": response_advantage(epsilon, first, second),
            "slope": math.nan,
        }
        for first, second in ((2, 30), (5, 5))
        for epsilon in (0.5, 1.0, 2.0)
    ]
    lines = [
        f"Slope of the advantage in the bag size k, from k = {FITTED_FROM} to {RATE_SIZES[-1]} on logarithmic axes "
        f"(the theorems: at most k^{THEOREM_EXPONENT:g}, without factors log k):"
    ]
    lines += [f"  Theorem {theorem}, {priors:<42} {slope(values):.3f}" for (theorem, priors), values in columns.items()]
    lines += [
        f"  Response at ε = {row['epsilon']:g}, {row['priors']:<38} {row['advantage']:.3g}"
        for row in rows
        if row["theorem"] == "3.5"
    ]
    return options.publish("rates", lines, rows, figure=_draw_rates(columns))


def response_advantage(epsilon: float, first: float, second: float) -> float:
    """Return the exact additive advantage of randomised response if priors follow Beta(first, second), by quadrature.

    A prior outside [pi, 1 - pi] with pi = 1 / (1 + e^epsilon) gives none, by Theorem 3.5.
    """
    law, least = beta(first, second), 1 / (1 + math.exp(epsilon))

    def weighted(prior: float) -> float:
        return float(law.pdf(prior) * rr_additive_advantage(prior, epsilon=epsilon))

    return float(quad(weighted, least, 1 - least, points=[0.5], epsabs=1e-14)[0])


def slope(advantages: NDArray[np.float64]) -> float:
    """Return the least-squares slope of log advantage over log bag size, from `FITTED_FROM` on; shape of `RATE_SIZES`.

    Infinite and vanished advantages are left out; NaN if fewer than two remain.
    """
    sizes = np.array(RATE_SIZES, np.float64)
    usable = (sizes >= FITTED_FROM) & np.isfinite(advantages) & (advantages > 0)
    if usable.sum() < 2:
        return math.nan
    return float(np.polyfit(np.log(sizes[usable]), np.log(advantages[usable]), 1)[0])


def _rate_lines(rng: np.random.Generator) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Return the advantages at all bag sizes, by theorem and priors."""
    lines: dict[tuple[str, str], NDArray[np.float64]] = {}
    independent = np.asarray(product_advantage(0.5, np.array(RATE_SIZES)))
    lines["3.3", "all 0.5"] = independent
    for first, second in ((5, 5), (2, 30)):
        mean = [llp_additive_advantage(rng.beta(first, second, (RATE_BAGS, size))).mean() for size in RATE_SIZES]
        lines["3.3", f"Beta({first}, {second})"] = np.array(mean)
    for prior in (0.5, 0.4):
        at_first = []
        for size in RATE_SIZES:
            bags = rng.beta(5, 5, (RATE_BAGS, size))
            bags[:, 0] = prior
            at_first.append(llp_additive_advantage(bags)[:, 0].mean())
        lines["3.4", f"{prior:g} among Beta(5, 5)"] = np.array(at_first)
    for share in (0.5, 0.2):
        quantiles = [shift_quantile(share, size, RATE_LEVEL) for size in RATE_SIZES]
        lines["3.7", f"all {share:g}"] = np.array(quantiles)
    return lines


def shift_quantile(share: float, size: int, level: float) -> float:
    """Return the quantile of the absolute multiplicative advantage, in nats, if every label is 1 with `share`.

    Given s positive labels of `size`, an example's posterior is s / size. The advantage is infinite at 0 and `size`.

    Args:
        share: Probability of a positive label, in (0, 1).
        size: Examples in the bag, >= 1.
        level: In (0, 1).
    """
    sums = np.arange(size + 1)
    with np.errstate(divide="ignore"):
        shift = np.abs(logit(sums / size) - logit(share))
    order = np.argsort(shift)
    # Rounding must not push the total below a level that it reaches.
    reached = np.cumsum(binom.pmf(sums, size, share)[order]) >= level * (1 - 1e-12)
    return float(shift[order][reached.argmax()])


@register("reproduction", "label-inference equivalence", source="Busa-Fekete et al. (2024), section 4; ours")
def equivalence(options: Options) -> Reproduction:
    """Bag sizes equivalent to an epsilon: Beta(2, 30) priors, or the column `prior` of priors/priors.csv in --data."""
    folder = options.data_set("priors")
    source = BetaPriors(rows=ROWS[options.scale]) if folder is None else OwnPriors(str(folder / "priors.csv"))
    prior = source.posterior(source.load(seed=options.seed).features)[:, 1]
    sizes = [size for size in SIZES if size <= prior.size]
    equivalents = equivalent_epsilons(prior, sizes, seed=options.seed)
    table = equivalence_table(equivalents, LEVEL, examples=prior.size)
    columns = {
        name: [getattr(equivalent, name) for equivalent in equivalents]
        for name in EquivalentResponse.__dataclass_fields__
    }
    return options.publish(
        *("equivalence", [str(table), *table.notes], columns),
        figure=_draw_equivalents(equivalents, str(source)),
        theory=_draw_theory(float(prior.mean())),
    )


def _run_studies(
    options: Options,
    name: str,
    mechanisms: Sequence[Any],
    *,
    releases: int,
    rows: int | None = None,
    utility: Utility | None = None,
) -> list[LabelStudy]:
    """Run all mechanisms on the data sets that `only` names; finished units in the run folder are reused.

    Args:
        options: The options of the reproduction.
        name: Name of the run folder.
        mechanisms: The settings.
        releases: Independent releases of the same labels.
        rows: Rows that are released, None for all; the others train the model of the priors.
        utility: Trainings on a release, which are tested on two fifths of the rows; None for none.
    """
    every = _data_sets(options, features=utility is not None)
    sets = {label: every[label] for label in options.chosen_parts(every, str, must="a data set, as `Higgs`")}
    if utility is not None:
        count = len(sets) * len(mechanisms) * utility.trainings
        options.say(f"{count} trainings: {len(mechanisms)} settings on {', '.join(sets)}, each of them one unit.")
    audits = [
        Audit(
            mechanism=mechanism,
            data=data,
            proxy=proxy,
            game=LabelAdvantage(releases, utility=utility),
            split=Partition(0.6, 0.0, 0.4) if utility is not None else split,
            name=f"{label}, {place + 1}",
        )
        for label, (data, proxy) in sets.items()
        for split in [_released_part(rows, data, options)]
        for place, mechanism in enumerate(mechanisms)
    ]
    run = replace(options.run, keep_scores=False, figures=False)
    spec = AuditSpec(tuple(audits), name=f"label inference advantage, {name}", seed=options.seed, run=run)
    return label_studies(audit(spec, output=options.output / name, listeners=options.listeners).results)


def _released_part(rows: int | None, data: Any, options: Options) -> Partition:
    """Return the split whose target part has `rows` rows, or all rows."""
    count = 0 if rows is None else len(data.load(seed=options.seed))
    share = 1.0 if rows is None or rows >= count else rows / count
    return Partition(target=share, reference=1.0 - share, test=0.0)


def _data_sets(options: Options, *, features: bool) -> dict[str, tuple[Any, Any]]:
    """Return generated data and the data sets at --data, each with the proxy that supplies its priors.

    Priors carry no further features to learn from. If models are trained, the features come from a mixture instead.
    """
    rows = ROWS[options.scale]
    true_posterior = TruePosterior()
    sources: dict[str, tuple[Any, Any]] = {"Beta(2, 30)": (BetaPriors(2, 30, rows), true_posterior)}
    if features:
        sources["mixture"] = (GaussianMixture(2, rows, MIXTURE), true_posterior)
    else:
        sources["Beta(5, 5)"] = (BetaPriors(5, 5, rows), true_posterior)
    sources["generated clicks"] = (CriteoSynthetic(CLICKS, intercept=FEW_CLICKS), ESTIMATED)
    if options.data is not None:
        sources |= {name: (data, ESTIMATED) for name, data in real_data(options.data, rows).items()}
    return sources


def real_data(path: Path, rows: int) -> Mapping[str, Any]:
    """Return the data sets in the folders `higgs`, `adult` and `criteo` of a folder; Higgs has a column `label`."""
    data_sets: dict[str, Any] = {}
    for file in sorted((path / "higgs").glob("higgs*sample*.csv*"))[:1]:
        data_sets["Higgs"] = Csv(str(file), label="label", rows=rows)
    if any((path / "adult").glob("adult.data*")):
        data_sets["adult"] = Adult(str(path / "adult"), rows=rows)
    for file in sorted((path / "criteo").glob("train.txt*"))[:1]:
        data_sets["Criteo"] = Criteo(str(file), rows=rows)
    return data_sets


def _write_figure(options: Options, name: str, studies: Sequence[LabelStudy], picture: style.Picture) -> Reproduction:
    rows = [
        {
            "data": study.data,
            "mechanism": setting.mechanism,
            "auc": setting.auc,
            "auc_error": setting.auc_error,
            **{f"{kind} advantage": setting.advantage.get(kind, math.nan) for kind in MEASURES},
            **{f"response, {kind}": _response_advantage(study, setting, kind) for kind in MEASURES},
            "largest multiplicative": setting.largest,
            **{f"dominated, {kind}": setting in study.dominated(kind) for kind in MEASURES},
        }
        for study in studies
        for setting in study.settings
    ]
    lines = [line for study in studies for line in _summary(study)]
    return options.publish(name, lines, rows, "report.html", figure=picture.figure)


def _response_advantage(study: LabelStudy, setting: MechanismSetting, kind: str) -> float:
    """Return the advantage of randomised response at the same AUC; NaN for randomised response, or if none has it."""
    comparable = setting.family != RANDOMIZED_RESPONSE and kind in setting.advantage and not math.isnan(setting.auc)
    return study.response_at(setting.auc, kind) if comparable else math.nan


def _summary(study: LabelStudy) -> list[str]:
    """Return lines with both advantages of each setting, and the comparison behind the paper's conclusion."""
    lines = [f"{study.data}: {LEVEL:.0%} multiplicative advantage, mean additive advantage"]
    lines += [
        f"  {setting.mechanism:<44} {setting.advantage['multiplicative']:>8.4f} {setting.advantage['additive']:>9.5f}"
        + ("" if math.isnan(setting.auc) else f"   AUC {setting.auc:.4f} ± {np.nan_to_num(setting.auc_error):.4f}")
        for setting in study.settings
        if set(MEASURES) <= setting.advantage.keys()
    ]
    return [*lines, *study.lines]


def _draw_equivalents(equivalents: Sequence[EquivalentResponse], title: str) -> Figure:
    """Draw equivalent epsilons against the bag size."""
    figure, axes = style.canvas(6.4, 4.0)
    sizes = [equivalent.size for equivalent in equivalents]
    top = 1.15 * max(
        [equivalent.additive_epsilon for equivalent in equivalents if math.isfinite(equivalent.additive_epsilon)],
        default=1.0,
    )
    for name, colour, label in (
        ("multiplicative", palette.MEMBER, f"same {LEVEL:.0%} quantile of the multiplicative advantage"),
        ("additive_epsilon", palette.OTHER, "same mean additive advantage"),
    ):
        values = np.array([getattr(equivalent, name) for equivalent in equivalents])
        axes.plot(sizes, np.where(np.isfinite(values), values, np.nan), "o-", color=colour, markersize=4, label=label)
        beyond = np.isinf(values)
        axes.plot(np.array(sizes)[beyond], np.full(beyond.sum(), top), "^", color=colour, clip_on=False)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("examples in a bag (▲: infinite)")
    axes.set_ylabel("ε of the randomised response, nats")
    axes.set_title(f"What tells as much as exact counts of bags: {title}", fontsize=10)
    axes.legend(fontsize=8.5)
    return figure


def _draw_theory(share: float) -> Figure:
    """Draw exact additive advantages for labels independent of features: Theorems 3.2 and 3.5, and the ceiling."""
    figure, (bags, response) = style.canvases(2, width=8.0, height=3.4)
    sizes = np.arange(1, 65)
    for p, colour in ((share, palette.MEMBER), (0.5, palette.OTHER)):
        bags.plot(sizes, product_advantage(p, sizes), color=colour, label=f"p = {p:.3g}")
        epsilons = np.linspace(0.02, 6, 300)
        advantages = np.array([rr_additive_advantage(p, epsilon=float(epsilon)) for epsilon in epsilons])
        response.plot(epsilons, advantages, color=colour, label=f"p = {p:.3g}")
    ceiling = [label_privacy_ceiling(float(epsilon)) for epsilon in epsilons]
    response.plot(epsilons, ceiling, color=palette.CLAIM, linestyle="--", label="ceiling, 1 - 2/(1 + e^ε)")
    bags.set_xlabel("examples in a bag")
    bags.set_ylabel("additive advantage")
    bags.set_title("exact counts, Theorem 3.2", fontsize=10)
    response.set_xlabel("ε, nats")
    response.set_title("randomised response, Theorem 3.5", fontsize=10)
    for axes in (bags, response):
        axes.set_ylim(0, 0.5)
        axes.legend(fontsize=8.5)
    return figure


RATE_TITLES = {
    "3.3": ("Theorem 3.3: mean of all examples", "additive advantage"),
    "3.4": ("Theorem 3.4: one example", "additive advantage"),
    "3.7": (f"Theorem 3.7: {RATE_LEVEL:.0%} of the examples", "multiplicative advantage, nats"),
}


def _draw_rates(columns: Mapping[tuple[str, str], NDArray[np.float64]]) -> Figure:
    """Draw a panel for each theorem: advantages over bag sizes, and the theorem's rate through the first line's end."""
    figure, (panels,) = style.grid(1, len(RATE_TITLES), width=11.4, height=4.0)
    sizes = np.array(RATE_SIZES, np.float64)
    for axes, (theorem, (title, label)) in zip(panels, RATE_TITLES.items(), strict=True):
        lines = {priors: values for (of, priors), values in columns.items() if of == theorem}
        for (priors, values), colour in zip(lines.items(), palette.COLOURS, strict=False):
            name = f"{priors}: slope {slope(values):.2f}"
            axes.plot(
                sizes, np.where(np.isfinite(values), values, np.nan), "o-", color=colour, markersize=4, label=name
            )
        last = next(iter(lines.values()))[-1]
        rate = last * (sizes / sizes[-1]) ** THEOREM_EXPONENT
        axes.plot(sizes, rate, "--", color=palette.INK, linewidth=1, label="k^(-1/2)")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("examples in a bag, k")
        axes.set_ylabel(label)
        axes.legend(fontsize=8, loc="lower left")
    return figure
