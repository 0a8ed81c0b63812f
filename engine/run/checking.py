"""`check`: test a claim with every game that fits the mechanism, and give one verdict."""

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
from dpaudit.claims import Claim, Relation, Scope, strict_scopes
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.exits import tell
from dpaudit.engine.request.audit_spec import ACCOUNTANT, AuditSpec, RunOptions
from dpaudit.engine.request.build import named_part
from dpaudit.engine.request.check import (
    PLANNING_MESSAGE,
    CheckOptions,
    CheckRequest,
    Effort,
    check_spec,
    require_no_estimator,
)
from dpaudit.engine.request.function_request import function_on_rows, rows_with_schema
from dpaudit.engine.run.driver import audit, event_listeners, resume, with_wall_time
from dpaudit.engine.run.registration import REGISTRY, register
from dpaudit.engine.run.run_folder import default_run_folder
from dpaudit.errors import SpecError, printable, require, shortened
from dpaudit.mechanisms.adapters.code_on_rows import Form

TRIAL_FACTOR = 4
"""Factor by which an undecided test gets more trials."""


def check(
    mechanism: Any,
    data: Any = None,
    *,
    claim: Claim | Literal["accountant"] | float | tuple[float, float] | str | None = None,
    schema: Mapping[str, Any] | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    person: str | None = None,
    group: int | None = None,
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
    unit: str | None = None,
    registry: str | Path = REGISTRY,
    listeners: Sequence[Listener] = (),
    quiet: bool = False,
) -> Report:
    """Check the claim of a mechanism, or of any function on rows, with every game that fits, and give one verdict.

    In a first pass the games share an error of 0.05. A game that rejects the claim is repeated with other seeds and at
    the confidence of the verdict. If the repetition rejects the claim too, the verdict `report.joint` is VIOLATION and
    the remaining games are skipped.

    Args:
        mechanism: A registered name, `{"name": ..., fields}`, "package.module:Class", or an object. With `schema`, any
            function `f(rows, rng, **settings)` or its path "package.module:function" (see `OwnFunction`), or a
            generator of tables, a class with `fit(rows)` and `sample(count)` (see `OwnGenerator`).
        data: As in an `Audit`; with `schema` also a data frame, or the path of a file of a table, of real rows.
            Default: small generated data.
        claim: Overrides the claim that the mechanism states; "accountant" takes the claim of Opacus's accountant for
            one training on as many rows as the check has. For a function: a `Claim`, epsilon, (epsilon, delta),
            "rho=0.5" (zCDP) or "mu=1" (Gaussian DP). Default: the claim that its code states (`stated_claim`).
        schema: Schema of a function's rows: `{"age": (0, 100), "sex": ["f", "m"]}`.
        relation: Neighbouring relation of a function's tables: "add-remove" or "replace".
        person: Column that names the person of each row, if the claim is about persons: two tables differ in all rows
            of one person, which may be in different categories. Under "replace", as many rows replace them.
        group: With `person`, the most rows of a person; default: any number. Otherwise the number of rows in which two
            tables of a function differ; default: 1.
        form: Type in which a function receives its rows: "frame", "arrow", "array", "records" or "list".
        settings: Keyword arguments of a function, each a value or a list of values to try.
        python: Another Python interpreter that runs a function, for example because its library is installed there.
        folder: Folder where that Python looks for the function first. Default: the current folder.
        memory_mb: Memory limit of the other Python in megabytes.
        time: Also treat the duration of each call of a function as an output (timing side channel).
        split: Shares of the data for training, the attacker and the test.
        effort: "quick", "standard" or "thorough": fixes the calls and trainings of each test, so that the same command
            gives the same scores on any machine.
        budget: Cap in time or trainings: "10m", "90s", "1h, 500 trainings". Tests that do not fit are left out and
            named. Default: 2 minutes for a quick check, 10 for a standard one, 2 hours for a thorough one.
        confidence: Confidence of the verdict VIOLATION, in (0, 1).
        until_decided: If the verdict is UNDECIDED, repeat the undecided tests with four times the trials and return
            that report. Both share the error of the verdict. The second run folder ends in "-more".
        strict: Scopes whose side findings are part of the verdict: "floating-point" (low digits of numbers),
            "beyond-schema" (rows that the schema does not allow), or "all".
        seed: Seed of all randomness. Default: 0; with `unit` drawn at random.
        name: Name for the report and the default run folder.
        run: Run options. Default: in this process if nothing is trained, else `auto`.
        output: The run folder. Default: `runs/<name>`.
        unit: What one unit of privacy is, in words, such as "one row". The check is registered before its tests run, so
            that `verify` accepts it; its run folder must be new.
        registry: File to which the entry of a registered check is appended.
        listeners: Called with every event, instead of the progress display on standard error.
        quiet: Show no progress.
    Returns: The report, with the result of each game that ran. `report.joint` is None without a claim: the one test has
        its answer in `report.answers`.
    Raises: SpecError if no game fits; DataError for bad data; RunError if the run fails.
    """
    began, stated = monotonic(), claim
    require(
        unit is None or not until_decided, "a registered check has one run", do="leave out until_decided or the unit"
    )
    if schema is not None:
        mechanism, made_data = function_on_rows(
            mechanism,
            schema,
            claim=claim,
            relation=relation,
            group=group,
            form=form,
            settings={} if settings is None else settings,
            python=python,
            folder=folder,
            memory_mb=memory_mb,
            time=time,
        )
        data, claim = made_data if data is None else rows_with_schema(data, schema), None
    else:
        of_pairs = relation not in (None, Relation.ADD_REMOVE), person is not None, group is not None
        of_code = form != "frame", settings, python, folder, memory_mb is not None, time
        _require_no_function(mechanism, claim, options_given=any((*of_pairs, *of_code)))
    request = CheckRequest(mechanism, data, claim, split, budget, person, group)  # type: ignore[arg-type]
    options = CheckOptions(name, seed or 0, confidence, until_decided, run, strict_scopes(strict), effort)
    with event_listeners(listeners, quiet=quiet) as listening:
        EventStream(*listening).emit(Event(EventKind.STAGE, detail=PLANNING_MESSAGE))
        spec = check_spec(request, options)
    if spec.together is not None and not quiet and not listeners:
        for line in (*spec.together.chosen, *spec.together.left_out):
            tell(printable(line))
    # Two claims of one function need two run folders.
    about = f"{stated.epsilon:g} {stated.delta:g}" if isinstance(stated, Claim) else "" if stated is None else stated
    named = spec if name else replace(spec, name=f"{spec.name} {about}".rstrip())
    output_folder = default_run_folder(named) if output is None else output
    if unit is not None:
        register(spec, unit=unit, output=output_folder, registry=registry, seed=seed)
    try:
        if unit is None:
            report = audit(spec, output=output_folder, listeners=listeners, quiet=quiet)
        else:
            report = resume(output_folder, listeners=listeners, quiet=quiet)
        if until_decided:
            report = rerun_undecided(spec, report, output_folder, listeners=listeners, quiet=quiet)
    except KeyboardInterrupt as err:
        err.add_note(f"`dpaudit resume {shlex.quote(str(output_folder))}` continues it")
        raise
    return with_wall_time(began, report)


def _require_no_function(mechanism: Any, claim: object, *, options_given: bool) -> None:
    """Raise SpecError if the arguments are those of a function on rows, which needs a schema."""
    require_no_estimator(mechanism)
    example = "dpaudit.check(f, claim=1.0, schema={'age': (0, 100), 'sex': ['f', 'm']})"
    give = f"Give `schema`, the values that the rows may have: {example}, or the option --schema '{{age: [0, 100]}}'"
    if inspect.isroutine(mechanism) or isinstance(mechanism, partial):
        name = getattr(mechanism, "__name__", type(mechanism).__name__)
        raise SpecError(f"a function on rows needs a schema, got {name} without a schema. {give}")
    if options_given:
        raise SpecError(
            "relation, person, group, form, settings, python, folder, memory_mb and time are for functions on rows, "
            f"but there is no schema. {give}"
        )
    if claim is not None and claim != ACCOUNTANT and not isinstance(claim, Claim):
        if isinstance(mechanism, str) and ":" not in mechanism:
            named_part("mechanism", mechanism)  # refuses an unknown name
        raise SpecError(
            f"claim={shortened(claim)} is a claim for a function on rows, which needs a schema. {give}. The claim of a "
            "mechanism is a Claim(epsilon, delta, relation), or a field in its spec"
        )


def rerun_undecided(
    spec: AuditSpec, report: Report, folder: str | Path, *, listeners: Sequence[Listener] = (), quiet: bool = False
) -> Report:
    """Return `report`; if it is undecided, rerun its undecided tests with more trials and return that report."""
    if report.joint is None or report.joint.verdict is not Verdict.UNDECIDED:
        return report
    tests = report.joint.record.tests
    # More trials tell nothing about code that keeps state.
    claim_tests = [test for test in tests if test.scope is Scope.CLAIM and not test.keeps_state]
    names = {test.name for test in claim_tests if test.is_open}
    if report.joint.answer.rule in ("digits-cannot-tell", "average-record", "stated-noise"):
        names |= {test.name for test in claim_tests}  # more trials may tell about the claim
    if not names:
        return report
    more = with_more_trials(
        spec, names | {test.name for test in tests if test.scope is not Scope.CLAIM and test.rejects}
    )
    return audit(more, output=f"{folder}-more", listeners=listeners, quiet=quiet)


def with_more_trials(spec: AuditSpec, undecided: Collection[str]) -> AuditSpec:
    """Return the spec of the undecided tests of a check, with more trials and another seed."""
    assert spec.together is not None
    factors_by_test = {name: factors for name, factors in spec.together.again.items() if name in undecided}
    side_scopes = {name: scope for name, scope in spec.together.side.items() if name in undecided}
    together = replace(
        spec.together, budget_s=None, chosen=(), left_out=(), cut="", again=factors_by_test, side=side_scopes
    )
    audits = []
    for entry in spec.audits:
        if entry.name in undecided:
            game, tests = entry.game, entry.game.traits.check_tests
            names = {name for test in tests for name in (*test.scales, *test.growth_on_repeat)}
            more = {name: TRIAL_FACTOR * getattr(game, name) for name in names if isinstance(getattr(game, name), int)}
            audits.append(replace(entry, game=replace(game, **more)))
    name, seed = f"{spec.name}, more trials", spec.seed + 1
    return replace(spec, audits=tuple(audits), together=together, name=name, seed=seed)
