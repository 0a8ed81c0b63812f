"""`dpaudit estimate`: bounds from a file of scores or counts, printed, as JSON, or as a small page."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpaudit.engine.cli.options import OUTPUT_FILE, completing, json_option
from dpaudit.engine.exits import end_by_verdict, show, show_lines
from dpaudit.errors import InputError, SpecError
from dpaudit.registry import catalogue, load

if TYPE_CHECKING:
    from dpaudit.claims import Claim


def _claim(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Claim | None:
    """Return the claim; the option takes the same texts as `dpaudit check --claim`."""
    if value is None:
        return None
    from dpaudit.claims import Relation, parse_claim

    try:
        return parse_claim(value, Relation.ADD_REMOVE)
    except InputError as err:
        raise InputError(f"--claim: {err}") from None


@click.command()
@click.argument("scores", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--method",
    shell_complete=completing(lambda: [(entry.name, entry.summary) for entry in catalogue("estimator").values()]),
    help="An estimator (see `dpaudit list estimators`).  [default: by the columns]",
)
@click.option("--delta", type=float, help="Delta of the bound, in [0, 1).  [default: the claim's, or 0]")
@click.option("--confidence", type=float, help="Confidence of the bound, in (0, 1).  [default: 0.95]")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="A field of the estimator: group=4.")
@click.option("--selection", help="Choice of the threshold or fraction: band, grid, split:0.5, fixed:0.01, ...")
@click.option("--family", metavar="FAMILY", help="Also bound under gaussian, laplace or dp-sgd:RATE,STEPS; no verdict.")
@click.option("--claim", callback=_claim, metavar="CLAIM", help="1, '1, 1e-5', rho=0.5 or mu=1; gives a verdict.")
@click.option("--fail-on-violation", is_flag=True, help="Exit with 1 when a bound exceeds the claim.")
@click.option("--fail-on-inconclusive", is_flag=True, help="Exit with 4 when the scores could not reject the claim.")
@click.option("--group-by", "group_column", metavar="COLUMN", help="Column that identifies the canary of each row.")
@click.option("--group-score", type=click.Choice(["max", "mean", "logsumexp"]), default="max", show_default=True)
@click.option("--by", metavar="COLUMNS", help="One bound for each combination of values, all valid together.")
@click.option("--ordered", is_flag=True, help="Rows are in the order of their trials (method betting).")
@click.option("--verbose", "-v", is_flag=True, help="Also print the method, the p-value and all intervals.")
@json_option
@click.option("--output", "-o", type=OUTPUT_FILE, help="Also write a small page (HTML).")
@click.option("--score-column", default="score", show_default=True)
@click.option("--member-column", default="member", show_default=True)
def estimate(
    scores: Path,
    options: tuple[str, ...],
    fail_on_violation: bool,
    fail_on_inconclusive: bool,
    verbose: bool,
    as_json: bool,
    output: Path | None,
    by: str | None,
    **question_fields: Any,
) -> None:
    """Bound epsilon from a file of attack scores or counts.

    SCORES is a file (CSV, TSV, JSON lines, Parquet, Feather, .npy, .npz; plain or packed), or - for standard input.

    With columns `score,member`, each row is an attack score (larger = more likely a member) and 1 or 0. The result is
    one bound on epsilon, with AUC, accuracy, and true-positive rates at 1 % and 0.1 % false-positive rate. The bound
    assumes that a fair coin made each canary a member, or, if that is impossible, that rows are independent trials.
    A column `planting_rate` states another probability of the coins, and `guess_order` an order of guesses.
    Columns of counts give one result for each row:

    \b
      tp,fp,tn,fn               confusion tables       clopper-pearson, jeffreys, bayesian, bayesian-posterior
      guesses,correct,canaries  one training run       one-run, one-run-f-dp, one-run-theorem-16, ...
      n1,n0,trials1,trials0     hits in two worlds     ratio, katz-log
      k1,n1,k2,n2               answers in a set       two-cut
      c1_A,c1_B,..,c2_A,..      answers of each class  k-cut
      rank,candidates           ranks of secrets       exposure
      log_probability,planted   texts of a model       discoverable-extraction
      longest_span,planted      copies of texts        verbatim-extraction
    """
    from dpaudit.engine.answer.verdict import Verdict
    from dpaudit.engine.estimate.estimating import Estimate, estimates
    from dpaudit.engine.estimate.reading import CanaryScores, Question, used_columns
    from dpaudit.engine.estimate.results import estimates_by, to_json, write_page
    from dpaudit.engine.estimate.tables import SourceTable
    from dpaudit.estimators.extraction.shares import ExtractionTable

    if (fail_on_violation or fail_on_inconclusive) and question_fields["claim"] is None:
        option = "--fail-on-violation" if fail_on_violation else "--fail-on-inconclusive"
        raise InputError(f"{option} needs --claim: without a claim there is no verdict")
    question = Question(**question_fields)
    columns = [] if by is None else [name.strip() for name in by.split(",")]
    table = SourceTable.of_file(scores, partial(used_columns, question=question, by=columns))
    if options:
        question = replace(question, options=field_values(CanaryScores(table, question).method, options))
    slices: dict[str, Any] = {}
    if by is None:
        readings = estimates(table, question)
    else:
        slices = estimates_by(table, question, columns)
        readings = [reading for reading in slices.values() if isinstance(reading, Estimate)]
    if as_json:
        show_lines(to_json(table.name, readings, slices))
    elif by is not None:
        for name, reading in slices.items():
            show_lines(
                f"{name}: {f'{reading.verdict}, {reading.headline}' if isinstance(reading, Estimate) else reading}"
            )
        answered = sum(not isinstance(reading, str) for reading in slices.values())
        has_tables = any(isinstance(reading, ExtractionTable) for reading in slices.values())
        results = "tables" if has_tables else "bounds"
        show_lines(f"The {answered} {results} hold together: each has an equal share of the error.")
    else:
        for reading in readings:
            if isinstance(reading, Estimate):
                show_lines(reading.text(verbose=verbose))
                continue
            show_lines(str(reading))
            for note in reading.notes:
                show(f"  {note}")
    if output is not None:
        write_page(output, table.name, readings, slices)
    verdicts = [reading.verdict for reading in readings if isinstance(reading, Estimate)]
    incomplete = len(verdicts) < max(1, len(slices))  # a slice or the whole table has no verdict
    end_by_verdict(
        rejected=not {Verdict.VIOLATION, Verdict.UNDECIDED}.isdisjoint(verdicts),
        inconclusive=incomplete or Verdict.INCONCLUSIVE in verdicts,
        fail_on_violation=fail_on_violation,
        fail_on_inconclusive=fail_on_inconclusive,
    )


def field_values(method: str, options: Sequence[str]) -> dict[str, object]:
    """Return field values from "name=value" texts; a field with several values takes them separated by commas."""
    hints = typing.get_type_hints(load("estimator", method)) if options else {}
    values: dict[str, object] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise SpecError(f"--option must be NAME=VALUE, got {option!r}")
        several = typing.get_origin(hints.get(name)) is tuple
        values[name] = tuple(value.split(",")) if several else value
    return values
