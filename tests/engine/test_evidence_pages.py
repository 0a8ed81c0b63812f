"""Pages, cards and charts: consistent numbers, rows with names, and nothing cut off on a phone."""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from numpy.typing import NDArray

from dpaudit import AuditResult, Claim, Relation, Report, Verdict
from dpaudit.claims import GaussianDP, Scope
from dpaudit.engine.answer.answer_words import NOT_SHOWN
from dpaudit.engine.answer.record import Sensitivity, Test
from dpaudit.engine.answer.sweep_summary import Reaudit, SweepSummary
from dpaudit.engine.answer.verdict import COLOURS
from dpaudit.engine.figures.finding_figures import finding_figures
from dpaudit.engine.games.one_run.labelled import utility
from dpaudit.engine.games.two_world.work import accuracy_metrics
from dpaudit.engine.report.charts import SIDE, SPAN, frontier, overview, scores
from dpaudit.engine.report.page import write_page
from dpaudit.engine.request.audit_spec import slug
from dpaudit.engine.run.model_card import REJECTED, CardLine, ModelCard
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.one_run.step_martingale import StepMartingale
from dpaudit.estimators.scores import StepScores
from dpaudit.estimators.two_world.two_sample import Band
from dpaudit.mechanisms.examples import Examples, Features
from tests.engine.test_findings import finding_of, report, result, two_worlds
from tests.engine.test_page_in_a_browser import BROWSER, pages_of
from tests.engine.test_sweep import TestSummaries

PHONE = 390
"""Width of a phone, in CSS pixels."""


def steps(right: int, count: int = 400) -> Bound:
    """Return the finding of a training in which the coins of the last `right` steps were guessed right."""
    coins = np.arange(count) % 2 == 0
    score = np.where(coins == (np.arange(count) >= count - right), 1.0, -1.0)
    finding = finding_of(StepMartingale(delta=1e-5), [StepScores.in_single_precision(coins, score)])
    assert isinstance(finding, Bound)
    return finding


def unclipped() -> AuditResult:
    """Return a training without clipping: its steps exceed 1-GDP by total variation, its ceiling by epsilon."""
    claim = Claim.of(GaussianDP(1.0), relation=Relation.ADD_REMOVE, delta=1e-5)
    return replace(result(steps(398), claim), sensitivity=Sensitivity(maximum=steps(400), played=True))


def test_lines_of_the_overview_use_the_quantity_of_the_bar() -> None:
    audit = unclipped()
    assert audit.own_comparison is not None
    assert audit.own_comparison.quantity == "total variation"
    assert audit.sensitivity.maximum is not None
    assert audit.sensitivity.maximum.lower > 1, "as an epsilon the ceiling is no total variation"
    (axes,) = overview([audit]).figure.axes
    places = [float(np.asarray(line.get_xdata())[0]) for line in axes.lines]
    assert len(places) == 2
    assert all(place <= 1 for place in places), "claim and ceiling are total variations too"
    assert "maximum detectable total variation" in audit.answer.line("sensitivity")
    assert audit.row()["ceiling"] == max(places)


def test_number_of_a_bar_does_not_overlap_the_line_of_the_claim() -> None:
    bound = Bound(0.95, 0.0, 0.95, "m", Validity.FINITE_SAMPLE)
    (axes,) = overview([result(bound, Claim(1.0))]).figure.axes
    (number,) = [text for text in axes.texts if text.get_text() == "0.950"]
    assert number.xy[0] == 1.0  # type: ignore[attr-defined]


def test_side_finding_does_not_have_the_colour_of_a_violation() -> None:
    bound = Bound(2.0, 0.0, 0.95, "m", Validity.FINITE_SAMPLE)
    audit = result(bound, Claim(1.0))
    colours = []
    for scope in (Scope.CLAIM, Scope.FLOATING_POINT):
        (axes,) = overview([replace(audit, scope=scope)]).figure.axes
        colours += [to_hex(bar.get_facecolor()) for bar in axes.patches]
    assert colours == [COLOURS[Verdict.VIOLATION], SIDE]


def test_a_maximum_below_the_bound_is_not_printed() -> None:
    """With fewer trials the noiseless run may give less than the run: "at least 3.7, at most 3.4" is nonsense."""
    bound, maximum = (Bound(lower, 0.0, 0.95, "m", Validity.FINITE_SAMPLE) for lower in (3.731, 3.425))
    audit = replace(result(bound, Claim(1.0)), sensitivity=Sensitivity(maximum=maximum, played=True))
    assert audit.verdict is Verdict.VIOLATION
    assert "3.43" not in str(audit)
    assert audit.answer.line("sensitivity") == ""
    row = replace(TestSummaries.ROWS[3], audited=3.731, claimed=1.0, ceiling=3.425)
    assert row.epsilon_text("together") == (
        "epsilon of one record at least 3.731 (together; finite-sample); more than the claimed 1"
    )
    record = Test("t", Claim(1.0), audit.compared, bound, sensitivity=Sensitivity(maximum=maximum))
    assert record.maximum_at(audit.comparison) is not None  # type: ignore[arg-type]


def test_replays_with_bounds_of_0_have_no_figure() -> None:
    nothing = finding_of(OneRun(), [two_worlds(0.0, replay) for replay in range(3)])
    something = finding_of(OneRun(), [two_worlds(4.0, replay) for replay in range(3)])
    assert "replays" not in {picture.stem for picture in finding_figures(nothing, Claim(1.0))}
    assert "replays" in {picture.stem for picture in finding_figures(something, Claim(1.0))}


def test_series_of_another_name_or_other_columns_have_no_figure() -> None:
    series = {"ranks": {"rank": np.arange(3)}, "trials": {"seen": np.arange(3)}}
    bound = Bound(0.5, 0.0, 0.95, "m", Validity.FINITE_SAMPLE, series=series)
    assert list(finding_figures(bound, Claim(1.0))) == []


def test_few_scores_have_wide_bins_and_a_linear_axis() -> None:
    truth = np.arange(60) % 2 == 0
    (few,) = scores(truth, np.linspace(-1, 1, 60)).figure.axes
    (many,) = scores(np.tile(truth, 100), np.linspace(-1, 1, 6_000)).figure.axes
    assert (few.get_yscale(), many.get_yscale()) == ("linear", "log")
    assert len(np.asarray(few.lines[0].get_xdata())) - 1 < 12, "edges of bins; the line begins at 0"


def test_each_choice_has_a_distinct_name(tmp_path: Path) -> None:
    chosen = ("tables chosen: of 30 pairs `a` was taken; bounds: 1", "to paste into a test: d = []", "a sentence alone")
    audit = replace(unclipped(), chosen=chosen)
    assert [label for label, _ in audit.choices] == ["tables chosen", "to paste into a test", "chosen"]
    rows = Rows(page(report(audit), tmp_path)).rows
    assert ["To paste into a test", "d = []"] in rows
    assert ["Tables chosen", "of 30 pairs a was taken; bounds: 1"] in rows


def test_metrics_are_printed_with_their_errors() -> None:
    metrics = {"test_accuracy": 0.75, "test_accuracy_error": 0.0125, "failed_share": 0.0}
    assert replace(unclipped(), metrics=metrics).utility == "test accuracy 0.7500 ± 0.0125, failed share 0.0000"


def test_utility_has_standard_errors_and_the_accuracy_of_the_most_frequent_label() -> None:
    """75 of 100 rows have class 0, which the model predicts for all: accuracy 75 %, error sqrt(0.75 * 0.25 / 100)."""
    test = Examples(np.zeros((100, 1), np.float32), (np.arange(100) % 4 == 3).astype(np.int64), classes=2)
    measured = utility(Constant(), test, {})
    assert (measured["test_accuracy"], measured["majority_accuracy"]) == (0.75, 0.75)
    assert measured["test_accuracy_error"] == pytest.approx(math.sqrt(0.75 * 0.25 / 100))
    assert measured["test_log_loss_error"] == pytest.approx(math.log(9) * math.sqrt(0.75 * 0.25 / 100))
    assert accuracy_metrics(0.75, test)["test_accuracy_error"] == measured["test_accuracy_error"]


class Constant:
    """Model that predicts 90 % for class 0 on every input."""

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        return np.tile([0.9, 0.1], (len(features), 1))


# Sweeps


def swept(*utilities: float, majority: float = 0.755) -> SweepSummary:
    """Return a sweep of these accuracies, each with an error of 0.01."""
    summary = TestSummaries().summary()
    metrics = {"test_accuracy_error": 0.01, "majority_accuracy": majority}
    rows = tuple(replace(row, utility=u, metrics=metrics) for row, u in zip(summary.rows, utilities, strict=False))
    return replace(summary, rows=rows)


def test_a_sweep_shows_errors_the_majority_and_no_tiny_axis() -> None:
    (axes,) = frontier(swept(0.741, 0.755, 0.769)).figure.axes
    errors = [bars.lines[2][0].get_segments()[0] for bars in axes.containers if isinstance(bars, ErrorbarContainer)]
    assert [bar[1, 1] - bar[0, 1] for bar in errors] == pytest.approx([0.02] * 3)
    assert 0.755 in heights_of_rules(axes)
    low, high = axes.get_ylim()
    assert high - low >= SPAN
    assert low < 0.731
    assert high > 0.779


def test_sweep_without_errors_or_majority_has_no_extra_lines() -> None:
    (axes,) = frontier(TestSummaries().summary()).figure.axes
    assert not heights_of_rules(axes)
    assert math.isnan(TestSummaries().summary().majority)


def heights_of_rules(axes: Axes) -> list[float]:
    """Return the heights of the lines across the whole panel."""
    lines = [line for line in axes.lines if line.get_transform() == axes.get_yaxis_transform(which="grid")]
    return [float(np.asarray(line.get_ydata())[0]) for line in lines]


def crowded() -> SweepSummary:
    """Return a sweep whose best configuration has another one to the right of its claim."""
    summary = swept(0.93, 0.94, 0.933, 0.6)
    places = ((2.4, 3.0), (3.45, 4.0), (3.3, 4.0), (0.2, 1.0))
    rows = [replace(row, audited=low, claimed=high) for row, (low, high) in zip(summary.rows, places, strict=True)]
    named = (replace(row.configuration, name=f"epsilon=3, hidden=[{place}]") for place, row in enumerate(rows))
    return replace(summary, rows=tuple(replace(row, configuration=each) for row, each in zip(rows, named, strict=True)))


def test_names_in_a_sweep_figure_cover_no_point_and_no_name() -> None:
    figure = frontier(crowded()).figure
    (axes,) = figure.axes
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    points = [axes.transData.transform((x, row.utility)) for row in crowded().rows for x in (row.audited, row.claimed)]
    assert len(boxes) >= 2
    assert not [box for box in boxes for point in points if box.contains(*point)]
    assert all(box.count_overlaps(boxes) == 1 for box in boxes), "each overlaps itself alone"
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)


@pytest.mark.parametrize(
    ("relation", "with_record", "without"),
    [
        ("label", "the record's label", "another label"),
        ("replace", "with the record", "another in its place"),
        ("add-remove", "with the record", "without"),
    ],
)
def test_the_legend_of_scores_names_what_differs(relation: str, with_record: str, without: str) -> None:
    (axes,) = scores(np.arange(60) % 2 == 0, np.linspace(-1, 1, 60), Relation(relation)).figure.axes
    assert axes.get_legend_handles_labels()[1] == [f"world 1: {with_record}", f"world 0: {without}"]


def test_a_page_of_several_audits_folds_all_but_violations(tmp_path: Path) -> None:
    private = result(Bound(0.3, 0.0, 0.95, "m", Validity.FINITE_SAMPLE), Claim(1.0))
    assert (unclipped().verdict, private.verdict) == (Verdict.VIOLATION, Verdict.NO_VIOLATION)
    folded = r'<section id="([^"]+)">\s*<details( open)?><summary>'
    sections = re.findall(
        folded, page(report(replace(unclipped(), name="broken"), replace(private, name="kept")), tmp_path)
    )
    assert sections == [(slug("broken"), " open"), (slug("kept"), "")]
    assert not re.findall(folded, page(report(private), tmp_path))


def test_a_fresh_audit_without_a_utility_prints_none() -> None:
    again = Reaudit("observed epsilon >= 0.5 at delta=0", "NO VIOLATION FOUND", 1, 0.95, math.nan)
    assert "nan" not in str(replace(TestSummaries().summary(epsilon=2), reaudit=again))
    assert "test accuracy 0.7000." in str(
        replace(TestSummaries().summary(epsilon=2), reaudit=replace(again, utility=0.7))
    )


def test_cells_of_a_sweep_keep_their_headings_on_a_phone(tmp_path: Path) -> None:
    text = page(replace(report(unclipped()), sweep=swept(0.741, 0.755)), tmp_path)
    (table,) = re.findall(r'<table class="overview headed">.*?</table>', text, re.S)[:1]
    assert re.findall(r'data-label="([^"]+)"', table)[:4] == ["test accuracy", "audited ≥", "claimed", "detectable"]
    assert table.count("data-label") == 4 * 2


# Specs and cards


@pytest.mark.figures
@pytest.mark.skipif(BROWSER is None, reason="no browser on the path")
def test_card_of_long_lines_is_one_page_with_its_footer(tmp_path: Path) -> None:
    for count in (1, 3, 8):
        text = long_card(count).page()
        assert pages_of(text, tmp_path) == 1
        # As on paper: what is printed at the foot is within the height of the sheet.
        screen = text.replace("@media print", "@media all")
        height = float(measured(screen, "div.small.soft:last-of-type", "bottom", tmp_path))
        assert 0 < height < 272 / 25.4 * 96


def long_card(count: int) -> ModelCard:
    """Return a card of `count` verdicts in which every text has the maximum length."""
    words = "longword " * 60
    labels = ("reason", "where", "caution", "floating-point", "sensitivity", "not run")
    printed = tuple((label, words) for label in labels)
    bound = "epsilon >= 1.664 at delta=0 (99.9 % confidence, finite-sample, confirmatory run)"
    lines = tuple(
        CardLine("audit " * 20, verdict, "epsilon 1 at delta 0", bound, 1.6, 0.0, words[:400], printed, words, words)
        for verdict in (list(Verdict) * 2)[:count]
    )
    facts = {"date": "2026", "version": "v", **dict.fromkeys(("data", "code", "spec", "results"), words)}
    return ModelCard("run " * 30, lines, facts, "dpaudit run spec.yaml --seed 1", (words[:300],) * 2)


def test_violation_has_no_warning_about_low_bounds() -> None:
    violation = replace(long_card(1), lines=long_card(1).lines[:1])
    assert violation.lines[0].verdict is Verdict.VIOLATION
    assert (violation.means, violation.caution) == (REJECTED, "")
    assert long_card(2).caution == NOT_SHOWN[0]


def test_a_sentence_is_not_repeated_below_itself() -> None:
    audit = result(finding_of(OneRun(), [two_worlds(4.0)]), Claim(0.5))
    assert audit.answer.line("evidence") == audit.answer.sentence.rstrip(".")
    assert audit._repr_html_().split("<details>")[0].count("an attacker was right in") == 1


# In a browser


@pytest.mark.figures
@pytest.mark.skipif(BROWSER is None, reason="no browser on the path")
def test_no_table_or_figure_is_cut_on_a_phone(tmp_path: Path) -> None:
    long = result(finding_of(Band(), [two_worlds(3.0, replay) for replay in range(3)]), Claim(0.5), name="audit " * 15)
    text = page(replace(report(long, unclipped()), sweep=swept(0.741, 0.755, 0.769)), tmp_path, figures=True)
    assert text.count("<svg") > 4
    assert beyond_the_edge(text, tmp_path) == "none"
    wide = text.replace("<main>", '<main><svg width="500" height="9"></svg>')
    assert beyond_the_edge(wide, tmp_path) == "svg 510", "the measurement detects a cut element"


def beyond_the_edge(text: str, folder: Path) -> str:
    """Return the tables and figures that end right of the edge of a phone, with where they end."""
    ends = (
        "[...document.querySelectorAll('svg,table,p,pre')].map(e=>[e.tagName,Math.round(e.getBoundingClientRect()"
        f".right)]).filter(e=>e[1]>{PHONE}).map(e=>e.join(' ').toLowerCase()).join(',')||'none'"
    )
    return evaluated(text, ends, folder, PHONE)


def measured(text: str, selector: str, side: str, folder: Path) -> str:
    """Return where an element of a page ends, in CSS pixels."""
    return evaluated(text, f"document.querySelector('{selector}').getBoundingClientRect().{side}", folder, 794)


def evaluated(text: str, expression: str, folder: Path, width: int) -> str:
    """Return the value of an expression in a browser that shows a page in a window of this width."""
    script = f"<script>document.body.dataset.value={expression}</script>"
    path = folder / "measured.html"
    path.write_text(re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", f"{script}</body>"), "utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},2000")
    command = [str(BROWSER), *options, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    (value,) = re.findall(r'data-value="([^"]*)"', completed.stdout)
    return str(value)


class Rows(HTMLParser):
    """Rows of all tables of a page, as the texts of their cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def page(of: Report, folder: Path, *, figures: bool = False) -> str:
    """Return the text of a report's page."""
    write_page(of, folder, draw=figures)
    return (folder / "report.html").read_text(encoding="utf-8")
