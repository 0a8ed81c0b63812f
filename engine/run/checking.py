"""One call that chooses: every game that fits a mechanism, one verdict."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from dpaudit.actors.events import Event, EventKind, EventStream, Listener
from dpaudit.claims import Claim, Relation
from dpaudit.claims.scope import Scope, strict_scopes
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.exits import tell
from dpaudit.engine.reading.run_report import Report
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.request.audit_spec import ACCOUNTANT, Audit, AuditSpec, RunOptions
from dpaudit.engine.request.check import CHOOSING, CheckOptions, CheckRequest, Effort, check_spec, function_on_rows
from dpaudit.engine.run.driver import audit, timed_from, told
from dpaudit.engine.run.run_folder import run_folder
from dpaudit.errors import SpecError, printable, shortened
from dpaudit.given import argument
from dpaudit.mechanisms.adapters.own_function import Form

MORE = 4
"""By how much the trials of a test grow that is still undecided."""


def check(
    mechanism: Any,
    data: Any = None,
    *,
    claim: Claim | Literal["accountant"] | float | tuple[float, float] | str | None = None,
    schema: Mapping[str, Any] | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    form: Form = "frame",
    settings: Mapping[str, Any] | None = None,
    python: str = "",
    folder: str = "",
    memory_mb: int | None = None,
    time: bool = False,
    split: Partition | None = None,
    effort: Effort = "standard",
    budget: str | None = None,
    confidence: float = CheckOptions.confidence,
    until_decided: bool = False,
    strict: str | Sequence[str] = (),
    seed: int | None = None,
    name: str = "",
    run: RunOptions | None = None,
    output: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    quiet: bool = False,
) -> Report:
    """Checks a mechanism's claim, or that of any function on rows, with every game that fits it: one verdict.

    In a first pass the games share an error of 0.05. One that refutes the claim is repeated, with other seeds and
    at the verdict's confidence; where that refutes it too, the verdict, `report.joint`, is VIOLATION, and the rest is
    left out.

    Args:
        mechanism: A registered name, `{"name": ..., fields}`, "package.module:Class", or an object. With `schema`, any
            function `f(rows, rng, **settings)`, or where it is, "package.module:function": see `OwnFunction`.
        data: As in an `Audit`; left out: small data are made.
        claim: Overrides what the mechanism states of itself; "accountant": what Opacus's says of one training on as
            many rows as those of the check have. Of a function: a `Claim`, epsilon, (epsilon, delta), "rho=0.5" (zCDP)
            or "mu=1" (Gaussian DP); left out: what its code states (`stated_claim`).
        schema: Of the rows of a function: `{"age": (0, 100), "sex": ["f", "m"]}`.
        relation: Which tables are neighbours, for a function: "add-remove" or "replace".
        form: How a function is given its rows: "frame", "arrow", "array", "records" or "list".
        settings: Keyword arguments of a function, each a value or the list of values that may be tried.
        python: The Python that runs a function, another one than this, say, where a library is installed.
        folder: Where that Python looks for the function first; left out: the folder one works in.
        memory_mb: Memory, in megabytes, that the other Python may have.
        time: Whether how long a call of a function takes is part of what it gives away.
        split: Which share of the data plays which part.
        effort: "quick", "standard" or "thorough": fixes the calls and trainings of each test, so that the same command
            gives the same scores on any machine.
        budget: A cap, in time or trainings: "10m", "90s", "1h, 500 trainings". What does not fit is left out and named.
            Left out: 2 minutes for a quick check, 10 for a standard one, 2 hours for a thorough one.
        confidence: Of the verdict VIOLATION, in (0, 1), whatever the first pass was.
        until_decided: Where the verdict is UNDECIDED, play what is undecided once more, with four times the trials, and
            report that; the error of the verdict is shared with it. Its run folder ends in "-more".
        strict: Scopes whose side findings are part of the verdict: "floating-point" (low digits of numbers),
            "beyond-schema" (rows that the schema does not allow), or "all".
        seed: Everything random follows from it; left out: 0.
        name: For the report and the default run folder.
        run: Where the work runs; left out: in this process where nothing is trained, else on Ray.
        output: The run folder; left out: `runs/<name>`.
        listeners: Told of every event while it happens, instead of the progress on standard error.
        quiet: Show no progress.
    Returns: The report, with the result of each game that was played.
    Raises: SpecError when no game fits; DataError for bad data; RunError when the run cannot go on.
    """
    began = monotonic()
    if schema is not None:
        mechanism, made = function_on_rows(
            mechanism,
            schema,
            claim=claim,
            relation=relation,
            form=form,
            settings=settings,
            python=python,
            folder=folder,
            memory_mb=memory_mb,
            time=time,
        )
        data, claim = made if data is None else data, None
    else:
        usual = relation in (None, Relation.ADD_REMOVE), form == "frame", not settings
        given = not all((*usual, not python, not folder, memory_mb is None, not time))
        _require_no_function(mechanism, claim, options_given=given)
    seed = argument("seed", seed, int | None)
    until_decided = argument("until_decided", until_decided, bool)
    request = CheckRequest(mechanism, data, claim, split, budget)  # type: ignore[arg-type]
    scopes = tuple(scope.value for scope in strict_scopes(argument("strict", strict, str | Sequence[str])))
    options = CheckOptions(name, seed or 0, confidence, until_decided, run, scopes, effort)
    with told(listeners, quiet=quiet) as listening:
        EventStream(*listening).emit(Event(EventKind.STAGE, detail=CHOOSING))
        spec = check_spec(request, options)
    if spec.together is not None and not quiet and not listeners:
        for line in (*spec.together.chosen, *spec.together.left_out):
            tell(printable(line))
    place = run_folder(spec) if output is None else output
    try:
        report = audit(spec, output=place, listeners=listeners, quiet=quiet)
        if until_decided:
            report = decided(spec, report, place, listeners=listeners, quiet=quiet)
    except KeyboardInterrupt as err:
        err.add_note(f"`dpaudit resume {shlex.quote(str(place))}` goes on")
        raise
    return timed_from(began, report)


def _require_no_function(mechanism: Any, claim: object, *, options_given: bool) -> None:
    """Raises SpecError where a function on rows is meant, whose rows nothing describes."""
    example = "dpaudit.check(f, claim=1.0, schema={'age': (0, 100), 'sex': ['f', 'm']})"
    give = f"give `schema`, which says what the rows may hold: {example}, or the option --schema '{{age: [0, 100]}}'"
    if inspect.isroutine(mechanism) or isinstance(mechanism, partial):
        raise SpecError(
            f"a function on rows must come with a schema, got {_called(mechanism)} without a schema; {give}"
        )
    if options_given:
        raise SpecError(
            "relation, form, settings, python, folder, memory_mb and time are for functions on rows, got one of them "
            f"without a schema; {give}"
        )
    if claim is not None and claim != ACCOUNTANT and not isinstance(claim, Claim):
        raise SpecError(
            f"claim={shortened(claim)} is a claim of a function on rows, which needs a schema; {give}. The claim of a "
            "mechanism is a Claim(epsilon, delta, relation), or a field of it in its spec"
        )


def _called(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def decided(
    spec: AuditSpec, report: Report, folder: str | Path, *, listeners: Sequence[Listener] = (), quiet: bool = False
) -> Report:
    """The report of a check, or where that is undecided the one of its undecided tests with more trials."""
    if report.joint is None or report.joint.verdict is not Verdict.UNDECIDED:
        return report
    tests = report.joint.record.tests
    of_claim = [test for test in tests if test.scope is Scope.CLAIM and not test.keeps_state]  # state: no trials tell
    names = {test.name for test in of_claim if test.is_open}
    if report.joint.answer.rule in ("digits-cannot-tell", "stated-noise"):  # of the claim, more trials may tell
        names |= {test.name for test in of_claim}
    if not names:
        return report
    more = once_more(spec, names | {test.name for test in tests if test.scope is not Scope.CLAIM and test.rejects})
    return audit(more, output=f"{folder}-more", listeners=listeners, quiet=quiet)


def once_more(spec: AuditSpec, undecided: Collection[str]) -> AuditSpec:
    """The tests of a check that were left undecided, with more trials and another seed."""
    assert spec.together is not None
    again = {name: factors for name, factors in spec.together.again.items() if name in undecided}
    side = {name: scope for name, scope in spec.together.side.items() if name in undecided}
    together = replace(spec.together, budget_s=None, chosen=(), left_out=(), cut="", again=again, side=side)
    audits = tuple(_with_more_trials(audit) for audit in spec.audits if audit.name in undecided)
    return replace(spec, audits=audits, together=together, name=f"{spec.name}, more trials", seed=spec.seed + 1)


def _with_more_trials(audit: Audit) -> Audit:
    names = {name for test in audit.game.traits.check_tests for name in (*test.scales, *test.growth_on_repeat)}
    numbers = {name: MORE * getattr(audit.game, name) for name in names if isinstance(getattr(audit.game, name), int)}
    return replace(audit, game=replace(audit.game, **numbers))
