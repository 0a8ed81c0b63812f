"""Run a sweep: explore its configurations, audit the remaining ones in one run, and report.

A `Request` describes the sweep. The specs of its runs are derived from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.actors.audited.signals import signals_interrupt
from dpaudit.actors.events import Event, EventKind, EventLog, EventStream, Listener, last_line
from dpaudit.actors.schedule import RunOutcome
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Inputs, Unit
from dpaudit.actors.work import Call, outcome_metadata
from dpaudit.cluster.session import ray_session
from dpaudit.consent import Consent, apply_consent, require_network
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.sweep_summary import REAUDIT, sweep_summary
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.request.build import build_dataclass
from dpaudit.engine.request.loading import configurations
from dpaudit.engine.request.plain_yaml import YamlFile
from dpaudit.engine.request.sweep import AUDITED, FAILED, STOPPED, Configuration, Rungs, SubjectTo, Sweep
from dpaudit.engine.run.driver import Before, event_listeners, run_missing, run_plan
from dpaudit.engine.run.policy import Policy
from dpaudit.engine.run.run_folder import checkpoints_of, consent_for, locked_folder, open_run_folder, place_of
from dpaudit.engine.run.run_status import CONFIGURATIONS
from dpaudit.engine.sweep.request import FILE, Request, read_request, request_in, require_intact
from dpaudit.engine.sweep.result import SweepResult
from dpaudit.errors import AuditError, InputError, RunError, SpecError, did_you_mean, shortened
from dpaudit.field_checks import checked_argument, require_yaml_values
from dpaudit.plain_files import is_remote, join_place, write_atomically

if TYPE_CHECKING:
    from ray.tune import TuneConfig

    from dpaudit.engine.sweep.tuning import Tuner


def sweep(
    spec: Audit | AuditSpec | str | Path | Mapping[str, Any],
    space: Mapping[str, Any] | None = None,
    *,
    maximise: str | None = None,
    minimise: str | None = None,
    subject_to: SubjectTo | Mapping[str, float] | None = None,
    rungs: Rungs | Mapping[str, Any] | None = None,
    reaudit: bool | None = None,
    tune_config: Any = None,
    output: str | Path | None = None,
    seed: int | None = None,
    listeners: Sequence[Listener] = (),
    quiet: bool = False,
) -> SweepResult:
    """Train and audit every configuration of a space, and find the most useful one with a bound on its epsilon.

    All bounds hold together with the spec's confidence: the error is split over the configurations, whose number is
    fixed beforehand.

    Args:
        spec: One audit, as for `dpaudit.audit`; a spec may contain the sweep in `grid` and `sweep`.
        space: Values by field, such as "mechanism.epsilon": a list, `tune.grid_search`, `tune.choice`, `tune.uniform`,
            `tune.loguniform`, `tune.randint` or `tune.lograndint`. They are added to the space of the spec.
        maximise: Metric to maximise. Default: "test accuracy".
        minimise: Metric to minimise instead.
        subject_to: Limits of the best configuration, `{"epsilon": 2}` or `{"audited_epsilon": 1}`.
        rungs: Early stopping by utility: `{"field": "mechanism.model.epochs", "values": [1, 3, 9]}`.
        reaudit: Audit the best configuration again, with a new seed and at full confidence.
        tune_config: Settings of Ray Tune: `num_samples`, `scheduler`, `search_alg`, `max_concurrent_trials`,
            `time_budget_s`, and `metric` and `mode` if there is neither `maximise` nor `minimise`.
        output: The folder, a path that every worker sees or a URI. Finished units of this sweep in it are reused.
            Default: `runs/<name>`.
        seed: Overrides the spec's seed.
        listeners: Called with every event, instead of the progress display on standard error.
        quiet: Show no progress.
    Returns: The result, which the folder contains too.
    Raises: SpecError and DataError for bad input; RunError if no configuration could be audited.
    """
    request = read_request(spec)
    options: dict[str, Any] = {
        "maximise": checked_argument("maximise", maximise, str | None),
        "minimise": checked_argument("minimise", minimise, str | None),
        "subject_to": _described(SubjectTo, subject_to, "subject_to"),
        "rungs": _described(Rungs, rungs, "rungs"),
        "reaudit": reaudit,
    }
    options = {name: value for name, value in options.items() if value is not None}
    if maximise or minimise:  # in place of the spec's
        options = {"maximise": "", "minimise": "", **options}
    extra_space = checked_argument("space", space, Mapping | None) or {}
    require_yaml_values(extra_space, "space")
    settings = replace(request.sweep, space={**request.sweep.space, **extra_space}, **options)
    request = replace(request, sweep=_with_tune(settings, tune_config))
    if seed is not None:
        request = replace(request, seed=seed)
    place = place_of(output) if output is not None else request.folder
    return _carry_out(request, place, tune_config, listeners=listeners, quiet=quiet)


def _described(part_type: type[SubjectTo | Rungs], value: Any, name: str) -> Any:
    """Build a part of a sweep from a mapping of its fields; return any other value unchanged."""
    if not isinstance(value, Mapping):
        return value
    require_yaml_values(value, name)
    return build_dataclass(part_type, value, location=name)


def _with_tune(sweep: Sweep, config: TuneConfig | None) -> Sweep:
    """Return the sweep with the settings of Ray Tune that belong to it."""
    if config is None:
        return sweep
    tune = sys.modules.get("ray.tune")
    if tune is None or not isinstance(config, tune.TuneConfig):
        raise InputError(f"tune_config must be a ray.tune.TuneConfig, got {type(config).__name__}")
    if config.metric and not (sweep.maximise or sweep.minimise):
        name = "minimise" if config.mode == "min" else "maximise"
        sweep = replace(sweep, **{name: config.metric})
    adaptive = config.search_alg is not None
    grids = [path for path, axis in sweep.space.items() if isinstance(axis, list)]
    if adaptive and grids:
        raise SpecError(f"{grids[0]}: a search algorithm needs tune.choice instead of a grid")
    if adaptive and sweep.metric.endswith("_epsilon"):
        raise SpecError("a search algorithm may use utility only: choices by bounds would make the bounds invalid")
    samples = config.num_samples if config.num_samples != 1 else sweep.samples
    return replace(sweep, samples=samples, adaptive=adaptive, count=samples if adaptive else sweep.count)


def restore_sweep(
    folder: str | Path,
    *,
    allow_code: bool = False,
    allow_network: bool = False,
    allow_files: bool = False,
    listeners: Sequence[Listener] = (),
    quiet: bool = False,
) -> SweepResult:
    """Resume a sweep: run its missing units only.

    The `allow_` options matter only for a sweep that this user did not write.

    Args:
        folder: The sweep's folder, a path or a URI.
        allow_code: Let the sweep import and run code.
        allow_network: Let the sweep send requests, including values of environment variables.
        allow_files: Let the sweep name files and folders outside its folder.
        listeners: As in `sweep`.
        quiet: Show no progress.
    Raises: SpecError if it is no folder of a sweep, or the sweep needs more than is allowed; RunError if it fails.
    """
    place = place_of(folder)
    requested_consent = Consent(allow_code, allow_network, allow_files)
    if not is_sweep(place):
        raise SpecError(
            f"{shortened(place)} must be the folder of a sweep (with {FILE} in it). `dpaudit sweep SPEC` creates one"
        )
    with open_run_folder(place) as local_folder:
        file = YamlFile.read_plain(local_folder / FILE)
        consent = consent_for(file, requested_consent)
        require_intact(file)
        with apply_consent(consent):
            request = request_in(file)
    with apply_consent(consent):
        return _carry_out(request, place, None, listeners=listeners, quiet=quiet)


def is_sweep(place: str | Path) -> bool:
    """True if the folder, a path or a URI, has a sweep."""
    try:
        return bool(FileStore.at(place).info(FILE).is_file)
    except (OSError, RunError):  # a name that is too long, or a store that does not answer
        return False


def outlined(source: str | Path, seed: int | None = None) -> tuple[AuditSpec, tuple[str, ...]]:
    """Return the spec with one audit for each configuration, and sentences on further trainings; nothing runs.

    Raises: SpecError if the sweep varies nothing.
    """
    request = read_request(source)
    request = request if seed is None else replace(request, seed=seed)
    _require_space(request)
    besides = []
    if request.sweep.rungs is not None:
        extra_trainings = len(request.configurations) * (len(request.sweep.rungs.values) - 1)
        besides.append(
            f"early stopping runs up to {extra_trainings} further trainings, one for each configuration at each rung. "
            "Configurations that it stops are not audited"
        )
    if request.sweep.reaudit:
        besides.append("the best configuration is audited once more, with a new seed")
    return request.spec(request.configurations), tuple(besides)


def _require_space(request: Request) -> None:
    if not request.sweep.space:
        raise SpecError(
            "a sweep must vary at least one field: give `grid: {mechanism.epsilon: [0.5, 1, 2]}`, or `space` in "
            "`sweep:`"
        )


def _carry_out(
    request: Request, place: str | Path, config: TuneConfig | None, *, listeners: Sequence[Listener], quiet: bool
) -> SweepResult:
    """Run the missing units of a sweep and return its result; one Ray session serves all rounds."""
    began = time.monotonic()
    _require_space(request)
    known_configurations = request.configurations
    if known_configurations:
        plan = make_plan(request.spec(known_configurations))  # raises errors in any configuration before anything runs
        _require_metric(plan, request.sweep)
        require_network(plan.spec, plan.price)
    else:
        require_network((request.base, request.run, request.sweep), lambda: "")
    _require_plannable(request)
    tuner = None  # if all configurations are known and none is stopped
    if config is not None or request.sweep.rungs is not None or request.sweep.adaptive:
        from dpaudit.engine.sweep.tuning import Tuner  # its import takes seconds

        tuner = Tuner(request.sweep, config)
    on_ray = request.run.runner_if_settled(request.base.resources) == "ray"
    with event_listeners(listeners, quiet=quiet) as listening:
        with (
            open_run_folder(place, listening) as folder,
            locked_folder(folder),
            ray_session(request.run.address) if on_ray else contextlib.nullcontext(),
            signals_interrupt(),
            contextlib.closing(EventLog(folder / "events.jsonl")) as log,
        ):
            request.write(folder)
            store, events = UnitStore(folder / "units"), EventStream(log, *listening)
            before = Before(began, frozenset(file.stem for file in (folder / "units").glob("*.parquet")))
            running = _SweepRun(request, folder, place, store, events, began, config)
            plan, answers, best = running.audit(known_configurations if tuner is None else running.explore(tuner))
        if best is not None:
            reaudit_folder = join_place(place, REAUDIT) if is_remote(place) else Path(place) / REAUDIT
            run_plan(make_plan(request.reaudit_spec(best)), reaudit_folder, listening)
        return SweepResult(run_plan(plan, place, listening, answers, before))


def _require_plannable(request: Request) -> None:
    """Plan the first configuration at each rung, so that a wrong field is refused before anything runs.

    For a search algorithm, whose configurations are not known, plan the first one of its space.
    """
    rungs = () if request.sweep.rungs is None else request.sweep.rungs.values
    if not rungs and request.configurations:
        return
    first = request.configuration(configurations(request.sweep.space, request.sweep.count, request.seed)[0])
    for rung in rungs or (None,):
        plan = make_plan(request.rung_spec([first], rung, seed=request.seed))
        _require_metric(plan, request.sweep)


def _require_metric(plan: Plan, sweep: Sweep) -> None:
    """Raise SpecError if no training of the plan measures the metric; units of users' games may measure anything."""
    calls = [training.task for entry in plan.audits for training in entry.game.trainings]
    if not all(isinstance(call, Call) and call.function.__module__.startswith("dpaudit.") for call in calls):
        return
    measured = {name for call in calls if isinstance(call, Call) for name in call.measures(Inputs(plan.shared))}
    if sweep.metric not in measured:
        wanted = "minimise" if sweep.minimise else "maximise"
        raise SpecError(f"{wanted} must be a metric that the audits measure: {_no_metric(sweep.metric, measured)}")


@dataclass(frozen=True)
class _SweepRun:
    """A running sweep: it explores configurations up to the last rung, then audits the remaining ones."""

    request: Request
    folder: Path  # local folder of the sweep
    place: str | Path  # folder of the sweep, a path or a URI
    store: UnitStore  # units in the folder
    events: EventStream
    began: float  # start of the sweep, by `time.monotonic`
    config: TuneConfig | None

    def explore(self, tuner: Tuner) -> list[Configuration]:
        """Return all configurations with their states: to be audited, stopped or failed."""
        request, count = self.request, self.request.sweep.count
        self._announce(f"trying {count} configurations")
        if not tuner.searches:
            return list(self._run_rungs(tuner, dict(enumerate(self._without_search()))).values())
        # Number of configurations that the search algorithm proposes before it learns their utility.
        at_a_time = (self.config and self.config.max_concurrent_trials) or request.run.workers or os.cpu_count() or 1
        by_name: dict[str, Configuration] = {}
        number = 0
        while number < count and self._in_time():
            batch: dict[int, Configuration] = {}
            while number < count and len(batch) < at_a_time:
                values = tuner.propose(number)
                if values is None:
                    break
                batch[number] = request.configuration(values)
                number += 1
            if not batch:
                break
            # The algorithm may propose a configuration twice.
            numbers = {configuration.name: key for key, configuration in batch.items()}.values()
            explored = self._run_rungs(tuner, {key: batch[key] for key in numbers})
            by_name |= {configuration.name: configuration for configuration in explored.values()}
            # Written so that the sweep can be resumed.
            replace(request, sweep=replace(request.sweep, configurations=tuple(by_name.values()))).write(self.folder)
            self._announce(f"{len(by_name)} of {count} configurations were proposed and tried")
        return list(by_name.values())

    def _without_search(self) -> tuple[Configuration, ...]:
        """Return the known configurations.

        A search that is resumed without its algorithm has those already proposed; random ones replace the others.
        """
        request = self.request
        if not request.sweep.adaptive:
            return request.configurations
        by_name = {
            configuration.name: request.configuration(configuration.values)
            for configuration in request.sweep.configurations
        }
        random_values = configurations(request.sweep.space, request.sweep.count, request.seed)
        for configuration in map(request.configuration, random_values):
            if len(by_name) < request.sweep.count:
                by_name.setdefault(configuration.name, configuration)
        return tuple(by_name.values())

    def _run_rungs(self, tuner: Tuner, initial: Mapping[int, Configuration]) -> dict[int, Configuration]:
        """Return configurations with their states after all rungs."""
        sweep, configurations = self.request.sweep, dict(initial)
        utility: dict[int, dict[str, float]] = {}
        for number in initial:
            tuner.begin(number)
        rungs = () if sweep.rungs is None else sweep.rungs.values[:-1]
        for rung_index, rung in enumerate(rungs):
            utility |= self._measure_utility(configurations, rung)
            for number, configuration in configurations.items():
                if configuration.state == AUDITED and not tuner.continues(number, rung_index, utility[number]):
                    metrics = {sweep.metric: utility[number][sweep.metric]}
                    configurations[number] = replace(configuration, state=STOPPED, metrics=metrics, rung=rung)
        if tuner.searches:
            utility |= self._measure_utility(configurations, None)
        for number, configuration in configurations.items():
            tuner.end(number, None if configuration.state == FAILED else utility.get(number, {}))
        return configurations

    def _measure_utility(self, configurations: dict[int, Configuration], rung: Any) -> dict[int, dict[str, float]]:
        """Return the metrics of one training of each remaining configuration at a rung; mark failed ones."""
        request = self.request
        seed = request.derived_seed("explore") if request.sweep.adaptive else request.seed
        active = [number for number, configuration in configurations.items() if configuration.state == AUDITED]
        if not self._in_time():
            configurations |= {number: replace(configurations[number], state=STOPPED, rung=rung) for number in active}
            return {}
        plans: list[Plan] = []
        trainings: dict[int, str] = {}  # key of the first training of each configuration; "" if it trains nothing
        units: dict[str, Unit] = {}  # of these trainings, and what they need
        for group in [[number] for number in active] if request.sweep.adaptive else [active] * bool(active):
            try:
                plan = make_plan(request.rung_spec([configurations[number] for number in group], rung, seed=seed))
            except AuditError as err:  # known configurations were checked before anything ran
                if not request.sweep.adaptive:
                    raise
                configurations[group[0]] = _failed(configurations[group[0]], str(err))
                continue
            firsts = [next(iter(entry.trainings), "") for entry in plan.audits if not entry.confirms]
            trainings |= dict(zip(group, firsts, strict=True))
            units |= {unit.key: unit for unit in plan.needed(firsts)}
            plans.append(plan)
        if not plans:
            return {}
        shared = {name: rows for plan in plans for name, rows in plan.shared.items()}
        outcome = self._run(replace(plans[0], units=tuple(units.values()), audits=(), shared=shared))
        utility: dict[int, dict[str, float]] = {}
        for number, training in trainings.items():
            if training and training not in outcome.finished:
                reason = last_line(outcome.failed.get(training, ""))
                why = f"the training at a rung failed, see units/{training}.failed: {reason}"
                configurations[number] = _failed(configurations[number], why)
                continue
            utility[number] = dict(outcome_metadata(self.store.schema(training)).metrics) if training else {}
            configurations[number] = with_metric(configurations[number], utility[number], request.sweep.metric)
        return utility

    def audit(self, configurations: Sequence[Configuration]) -> tuple[Plan, Mapping[str, Any], Configuration | None]:
        """Audit the remaining configurations in one plan.

        Returns: The plan of the report, the results of its audits by key, and the configuration to audit again; None
            without `reaudit`.
        """
        plan = make_plan(self.request.spec(_require_audited(configurations)))
        self._note(configurations, plan)
        self._announce(f"auditing {len(plan.audits)} configurations")
        outcome = self._run(plan, self.config and self.config.time_budget_s)
        policy = Policy(plan, self.store)
        results = policy.results(outcome, self.folder)
        results_by_name = {result.name: result for result in results}
        audited_configurations = [
            self._with_audit_result(configuration, results_by_name.get(configuration.name))
            for configuration in configurations
        ]
        self._note(audited_configurations, plan, over=True)
        plan = make_plan(self.request.spec(_require_audited(audited_configurations)))
        assert plan.spec.sweep is not None
        best = sweep_summary(plan.spec.sweep, results, plan.spec.confidence).best
        return plan, policy.answers, best.configuration if best is not None and self.request.sweep.reaudit else None

    def _with_audit_result(self, configuration: Configuration, result: AuditResult | None) -> Configuration:
        """Return a configuration with the state after its audit."""
        if configuration.state != AUDITED or result is None:
            return configuration
        metric = self.request.sweep.metric
        if result.finding is not None and (metric in result.metrics or not result.failures):
            return with_metric(configuration, result.metrics, metric)
        if not result.failures:
            return replace(configuration, state=STOPPED)
        why = next((f"{failure.label}: {failure.error}" for failure in result.failures if not failure.skipped), "")
        return replace(configuration, state=FAILED, error=f"{configuration.name}: {why or result.headline}")

    def _note(self, configurations: Sequence[Configuration], plan: Plan, *, over: bool = False) -> None:
        """Write state and unit keys of each configuration for `dpaudit status`; `over` is true after all audits."""
        units = {entry.audit.name: sorted(entry.keys) for entry in plan.audits if not entry.confirms}
        entries = [
            {"name": configuration.name, "state": configuration.state, "units": units.get(configuration.name, [])}
            for configuration in configurations
        ]
        content = json.dumps({"over": over, "configurations": entries}).encode()
        write_atomically(self.folder / CONFIGURATIONS, lambda file: file.write(content))

    def _in_time(self) -> bool:
        """True until the time budget is used up."""
        limit = None if self.config is None else self.config.time_budget_s
        return limit is None or time.monotonic() - self.began <= limit

    def _run(self, plan: Plan, budget_s: float | None = None) -> RunOutcome:
        scratch = checkpoints_of(self.place)
        return run_missing(plan, self.folder, self.store, self.events, scratch, self.began, budget_s)

    def _announce(self, what: str) -> None:
        self.events.emit(Event(EventKind.STAGE, detail=what))


def _require_audited(configurations: Sequence[Configuration]) -> Sequence[Configuration]:
    """Return the configurations; raise RunError if none is audited."""
    if any(configuration.state == AUDITED for configuration in configurations):
        return configurations
    why = next((configuration.error for configuration in configurations if configuration.error), "all were stopped")
    raise RunError(f"none of {len(configurations)} configurations could be audited. The first error: {why}")


def with_metric(configuration: Configuration, metrics: Mapping[str, float], metric: str) -> Configuration:
    """Return the configuration, failed if it has no such metric."""
    if metric in metrics:
        return configuration
    return _failed(configuration, _no_metric(metric, metrics))


def _no_metric(metric: str, measured: Collection[str]) -> str:
    if not measured:
        return f"there is no metric {metric!r}, nor any other; utility needs test rows (`split`)"
    return f"there is no metric {metric!r}, only {', '.join(sorted(measured))}{did_you_mean(metric, measured)}"


def _failed(configuration: Configuration, why: str) -> Configuration:
    return replace(configuration, state=FAILED, error=f"{configuration.name}: {why}")
