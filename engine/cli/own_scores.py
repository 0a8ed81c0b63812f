"""`dpaudit estimate`: the command line's way into `dpaudit.engine.estimate`.

An estimate leaves plain values for other programs, and one small page for people.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from dpaudit.engine.exits import INCONCLUSIVE, VIOLATION, end, show, show_lines
from dpaudit.errors import DataError, InputError, RunError, SpecError
from dpaudit.registry import catalogue, load

if TYPE_CHECKING:
    from dpaudit.claims import Claim
    from dpaudit.engine.estimate.estimating import Estimate, Question
    from dpaudit.engine.estimate.tables import SourceTable
    from dpaudit.estimators.counts import Reading

NOT_SHOWN = "A low bound is not evidence of privacy: it measures these scores only."


def _claim(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Claim | None:
    """Return the claim, in the words that `dpaudit check --claim` takes as well."""
    if value is None:
        return None
    from dpaudit.claims import Relation
    from dpaudit.claims.parsing import parse_claim

    try:
        return parse_claim(value, Relation.ADD_REMOVE)
    except InputError as err:
        raise InputError(f"--claim: {err}") from None


def _complete_method(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    entries = catalogue("estimator").values()
    return [CompletionItem(entry.name, help=entry.summary) for entry in entries if entry.name.startswith(begun)]


@click.command()
@click.argument("scores", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--method",
    shell_complete=_complete_method,
    help="An estimator (see `dpaudit list estimators`); left out: by the columns.",
)
@click.option("--delta", type=float, help="The delta the bound is stated at, in [0, 1); left out: the claim's, or 0.")
@click.option("--confidence", type=float, help="Stated confidence, in (0, 1); left out: 0.95.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="A field of the estimator: group=4.")
@click.option("--selection", help="How the threshold or fraction is chosen: band, grid, split:0.5, fixed:0.01, ...")
@click.option("--claim", callback=_claim, metavar="CLAIM", help="1, '1, 1e-5', rho=0.5 or mu=1; gives a verdict.")
@click.option("--fail-on-violation", is_flag=True, help="Exit with 1 when a bound exceeds the claim.")
@click.option("--fail-on-inconclusive", is_flag=True, help="Exit with 4 when the scores could not refute the claim.")
@click.option("--group-by", "group_column", metavar="COLUMN", help="Rows that share a value of it speak of one canary.")
@click.option("--group-score", type=click.Choice(["max", "mean", "logsumexp"]), default="max", show_default=True)
@click.option("--by", metavar="COLUMNS", help="Slices: one bound for each combination of values, valid together.")
@click.option("--ordered", is_flag=True, help="Rows are in the order of their trials (method betting).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write a small page (HTML) as well.")
@click.option("--score-column", default="score", show_default=True)
@click.option("--member-column", default="member", show_default=True)
def estimate(
    scores: Path,
    options: tuple[str, ...],
    fail_on_violation: bool,
    fail_on_inconclusive: bool,
    as_json: bool,
    output: Path | None,
    by: str | None,
    **asked: Any,
) -> None:
    """Bounds epsilon from a file of attack scores or counts.

    SCORES is a file (CSV, TSV, JSON lines, Parquet, .npy, .npz), or - for standard input.

    Columns `score,member` (member 1 or 0) hold one attack score a row, larger = more likely a member; one bound on
    epsilon comes out, and beside it AUC, true-positive rates at 1 % and 0.1 % false-positive rate, and accuracy. It
    holds if a fair coin made each canary a member; where that cannot be, if rows are independent trials.
    Columns of counts work too, one result a row:

    \b
      tp,fp,tn,fn               confusion tables       clopper-pearson, jeffreys, bayesian, bayesian-posterior
      guesses,correct,canaries  one training run       one-run, one-run-f-dp, one-run-theorem-16
      n1,n0,trials1,trials0     hits in two worlds     ratio, katz-log
      k1,n1,k2,n2               answers in a set       two-cut
      c1_A,c1_B,..,c2_A,..      answers of each class  k-cut
    """
    from dpaudit.engine.estimate.estimating import Estimate, Question, estimates, natural_method, used_columns
    from dpaudit.engine.estimate.tables import SourceTable
    from dpaudit.engine.reading.verdict import Verdict

    if (fail_on_violation or fail_on_inconclusive) and asked["claim"] is None:
        option = "--fail-on-violation" if fail_on_violation else "--fail-on-inconclusive"
        raise InputError(f"{option} must come with --claim: without a claim there is no verdict")
    question = Question(**asked)
    columns = [] if by is None else [name.strip() for name in by.split(",")]
    table = SourceTable.of_file(scores, partial(used_columns, question=question, by=columns))
    if options:
        question = replace(question, options=field_values(natural_method(table, question), options))
    slices: dict[str, Any] = {}
    if by is None:
        readings = estimates(table, question)
    else:
        slices = estimates_by(table, question, columns)
        readings = [one for one in slices.values() if isinstance(one, Estimate)]
    if output is not None:
        write_page(output, table.name, readings, slices)
    if as_json:
        show_lines(to_json(table.name, readings, slices))
    elif by is not None:
        for name, said in slices.items():
            show_lines(f"{name}: {said if isinstance(said, str) else f'{said.verdict}, {said.headline}'}")
        show_lines(f"The {len(readings)} bounds hold together: each has an equal part of the error.")
    else:
        for reading in readings:
            show_lines(str(reading))
            if not isinstance(reading, Estimate):  # an estimate prints its own
                for note in reading.notes:
                    show(f"  {note}")
    reached = [one.verdict for one in readings if isinstance(one, Estimate)]
    if fail_on_violation and {Verdict.VIOLATION, Verdict.UNDECIDED}.intersection(reached):
        end(VIOLATION)
    nothing = len(reached) < max(1, len(slices))  # of a slice, or at all
    if fail_on_inconclusive and (nothing or Verdict.INCONCLUSIVE in reached):
        end(INCONCLUSIVE)


def estimates_by(table: SourceTable, question: Question, columns: Sequence[str]) -> dict[str, Estimate | str]:
    """One `Estimate` for each combination of values in some columns, or why there is none.

    All bounds hold together with the stated confidence: each has an equal part of the error. The columns must be chosen
    before the scores are looked at.
    """
    from dpaudit.engine.estimate.estimating import Estimate, estimates

    slices = table.slices(columns)
    confidence = 0.95 if question.confidence is None else question.confidence
    question = replace(question, confidence=1 - (1 - confidence) / len(slices))
    found: dict[str, Estimate | str] = {}
    for name, rows in slices.items():
        try:
            made = estimates(rows, question)
        except (DataError, InputError) as err:  # too few rows of one slice leave the others as they are
            found[name] = str(err)
            continue
        if len(made) != 1 or not isinstance(made[0], Estimate):
            raise SpecError("--by needs a table of scores, or one row of counts in each slice that bounds epsilon")
        found[name] = made[0]
    return found


def to_json(source: str, readings: Sequence[Reading], slices: Mapping[str, Any]) -> str:
    """All readings in JSON, of slices by name; infinite numbers are the strings "inf" and "-inf"."""
    from dpaudit.engine.report.plain_values import in_json

    made = {name: {"error": said} if isinstance(said, str) else _values(said) for name, said in slices.items()}
    named = {"slices": made} if slices else {"readings": [_values(reading) for reading in readings]}
    return in_json({"source": source, **named})


def _values(reading: Reading) -> dict[str, Any]:
    """An estimate by its fields; a reading that bounds no epsilon by its text, line by line, and its notes."""
    from dpaudit.engine.estimate.estimating import Estimate
    from dpaudit.engine.report.plain_values import attributes

    if not isinstance(reading, Estimate):
        return {"text": str(reading).splitlines(), "notes": reading.notes}
    carried = ("lower", "upper", "delta", "confidence", "method", "selection", "validity")
    return {
        "verdict": reading.verdict,
        "answer": reading.answer.to_dict(),
        "claim": reading.claim and attributes(reading.claim, ("epsilon", "delta", "relation")),
        **attributes(reading, carried),
        "counts": dict(reading.counts),
        "notes": reading.notes,
        "measures": reading.measures,
    }


def write_page(path: Path, source: str, readings: Sequence[Reading], slices: Mapping[str, Any]) -> None:
    """Write the page, whole where it is a plain file; an estimate of a slice stands below its name."""
    from dpaudit.engine.estimate.estimating import Estimate
    from dpaudit.engine.report.page import escaping
    from dpaudit.plain_files import write_user_file

    named = slices.items() if slices else [("", reading) for reading in readings]
    estimates = [(name, reading) for name, reading in named if isinstance(reading, Estimate)]
    others = [reading for reading in readings if not isinstance(reading, Estimate)]
    page = escaping("dpaudit.engine.estimate").get_template("estimate.html.j2")
    text = page.render(source=source, estimates=estimates, others=others, not_shown=NOT_SHOWN)
    try:
        write_user_file(path, text.encode())
    except RunError as err:  # no run has failed: the option must change
        raise DataError(str(err)) from err


def field_values(method: str, options: Sequence[str]) -> dict[str, object]:
    """The fields that "name=value" words give; a field that holds several values takes them split by commas."""
    hints = typing.get_type_hints(load("estimator", method)) if options else {}
    given: dict[str, object] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise SpecError(f"--option must be NAME=VALUE, got {option!r}")
        several = typing.get_origin(hints.get(name)) is tuple
        given[name] = tuple(value.split(",")) if several else value
    return given
