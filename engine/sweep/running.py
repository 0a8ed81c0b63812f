"""Run a sweep: explore its configurations, audit the remaining ones in one run, and report.

A `Request` describes the sweep. The specs of its runs are derived from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.actors.audited.signals import signals_interrupt
from dpaudit.actors.events import Event, EventKind, EventLog, EventStream, Listener, last_line
from dpaudit.actors.schedule import RunOutcome
from dpaudit.actors.seed import Seed
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.actors.storage.places import is_remote, join_place
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Inputs
from dpaudit.actors.work import Call, outcome_metadata
from dpaudit.cluster.session import ray_session
from dpaudit.consent import Consent, apply_consent, require_network
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.sweep_summary import REAUDIT, reaudit_name, sweep_summary
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.request.audit_spec import (
    MAX_SEED,
    Audit,
    AuditSpec,
    RunOptions,
    as_data_source,
    slug,
    store_rows,
    with_stored_rows,
)
from dpaudit.engine.request.build import build, build_dataclass, with_absolute_paths
from dpaudit.engine.request.describe import describe
from dpaudit.engine.request.loading import spec_content, spec_parts
from dpaudit.engine.request.override import overridden
from dpaudit.engine.request.plain_yaml import YamlFile, to_yaml
from dpaudit.engine.request.space import configurations, normalized_space
from dpaudit.engine.request.sweep import (
    AUDITED,
    FAILED,
    STOPPED,
    Configuration,
    Rungs,
    SubjectTo,
    Sweep,
    configuration_name,
)
from dpaudit.engine.run.configurations import CONFIGURATIONS
from dpaudit.engine.run.driver import event_listeners, run_missing, run_plan
from dpaudit.engine.run.policy import Policy
from dpaudit.engine.run.run_folder import (
    checkpoints_of,
    consent_for,
    locked_folder,
    note_as_own,
    open_run_folder,
    place_of,
)
from dpaudit.engine.sweep.game_choice import most_powerful_game
from dpaudit.engine.sweep.result import SweepResult
from dpaudit.errors import AuditError, InputError, RunError, SpecError, did_you_mean, shortened
from dpaudit.field_checks import check_fields, checked_argument, checked_path, require_yaml_values
from dpaudit.plain_files import write_atomically

if TYPE_CHECKING:
    from ray.tune import TuneConfig

    from dpaudit.engine.sweep.tuning import Tuner

FILE = "sweep.yaml"
PARTS_OF_A_GAME = frozenset({"game", "attack", "estimator", "proxy", "audits"})
"""Fields of a spec that only fit a named game; without them, the game is chosen by its power."""


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
    if maximise or minimise:
        options = {
            "maximise": "",
            "minimise": "",
            **{name: value for name, value in options.items() if value is not None},
        }
    sweep_settings = replace(request.sweep, **{name: value for name, value in options.items() if value is not None})
    extra_space = checked_argument("space", space, Mapping | None) or {}
    require_yaml_values(extra_space, "space")
    request = replace(
        request, sweep=_with_tune(replace(sweep_settings, space={**sweep_settings.space, **extra_space}), tune_config)
    )
    if seed is not None:
        request = replace(request, seed=seed)
    place = place_of(output) if output is not None else request.folder
    return carry_out(request, place, tune_config, listeners=listeners, quiet=quiet)


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
        return carry_out(request, place, None, listeners=listeners, quiet=quiet)


def is_sweep(place: str | Path) -> bool:
    """True if the folder, a path or a URI, has a sweep."""
    try:
        return bool(FileStore.at(place).info(FILE).is_file)
    except (OSError, RunError):  # a name that is too long, or a store that does not answer
        return False


@dataclass(frozen=True)
class SweepOutline:
    """Work of a sweep before it runs."""

    spec: AuditSpec  # one audit for each configuration
    besides: tuple[str, ...]  # further trainings and audits, one sentence each


def outlined(source: str | Path, seed: int | None = None) -> SweepOutline:
    """Return the outline of a sweep's file; nothing runs.

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
    return SweepOutline(request.spec(request.configurations), tuple(besides))


def _require_space(request: Request) -> None:
    if not request.sweep.space:
        raise SpecError(
            "a sweep must vary at least one field: give `grid: {mechanism.epsilon: [0.5, 1, 2]}`, or `space` in "
            "`sweep:`"
        )


def carry_out(
    request: Request,
    place: str | Path,
    config: TuneConfig | None = None,
    *,
    listeners: Sequence[Listener] = (),
    quiet: bool = False,
) -> SweepResult:
    """Run the missing units of a sweep and return its result."""
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
    tuner = _tuner(request, config)
    with event_listeners(listeners, quiet=quiet) as listening:
        with _open_sweep_run(request, place, listening, began) as running:
            configurations = list(known_configurations) if tuner is None else running.explore(tuner, config)
            plan, best = running.audit(configurations, None if config is None else config.time_budget_s)
        if best is not None:
            reaudit_folder = join_place(place, REAUDIT) if is_remote(place) else Path(place) / REAUDIT
            run_plan(make_plan(request.reaudit_spec(best)), reaudit_folder, listening)
        return SweepResult(run_plan(plan, place, listening))


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


def _tuner(request: Request, config: TuneConfig | None) -> Tuner | None:
    """Return Ray Tune's part; None if all configurations are known and none is stopped. Its import takes seconds."""
    if config is None and request.sweep.rungs is None and not request.sweep.adaptive:
        return None
    from ray.tune import TuneConfig

    from dpaudit.engine.sweep.tuning import Tuner

    return Tuner(request.sweep, config or TuneConfig())


@contextlib.contextmanager
def _open_sweep_run(
    request: Request, place: str | Path, listeners: Sequence[Listener], began: float
) -> Iterator[_SweepRun]:
    """Lock the folder of a sweep and yield its run; one Ray session, if the spec has `ray`, serves all rounds."""
    on_ray = request.run.runner_if_settled(request.base.resources) == "ray"
    with (
        open_run_folder(place, listeners) as folder,
        locked_folder(folder),
        ray_session(request.run.address) if on_ray else contextlib.nullcontext(),
        signals_interrupt(),
    ):
        request.write(folder)
        with contextlib.closing(EventLog(folder / "events.jsonl")) as log:
            yield _SweepRun(request, folder, place, EventStream(log, *listeners), began)


@dataclass(frozen=True)
class _SweepRun:
    """A running sweep."""

    request: Request
    folder: Path  # local folder of the sweep
    place: str | Path  # folder of the sweep, a path or a URI
    events: EventStream
    began: float  # start of the sweep, by `time.monotonic`

    def explore(self, tuner: Tuner, config: TuneConfig | None) -> list[Configuration]:
        """Return all configurations after early stopping, with their states."""
        limit = None if config is None else config.time_budget_s
        at_a_time = None if config is None else config.max_concurrent_trials
        self._announce(f"trying {self.request.sweep.count} configurations")
        return Explorer(
            self.request,
            tuner,
            self._run,
            UnitStore(self.folder / "units"),
            at_a_time or self.request.run.workers or os.cpu_count() or 1,
            lambda: limit is None or time.monotonic() - self.began <= limit,
            self._keep_proposals,
        ).explore()

    def audit(
        self, configurations: Sequence[Configuration], budget_s: float | None
    ) -> tuple[Plan, Configuration | None]:
        """Audit the remaining configurations in one plan.

        Returns: The plan of the report, and the configuration to audit again; None without `reaudit`.
        """
        plan = make_plan(self.request.spec(_require_audited(configurations)))
        self._note(configurations, plan)
        self._announce(f"auditing {len(plan.audits)} configurations")
        outcome = self._run(plan, budget_s)
        results = Policy(plan, UnitStore(self.folder / "units")).results(outcome, self.folder)
        results_by_name = {result.name: result for result in results}
        audited_configurations = [
            self._with_audit_result(configuration, results_by_name.get(configuration.name))
            for configuration in configurations
        ]
        self._note(audited_configurations, plan, over=True)
        plan = make_plan(self.request.spec(_require_audited(audited_configurations)))
        assert plan.spec.sweep is not None
        best = sweep_summary(plan.spec.sweep, results, plan.spec.confidence).best
        return plan, best.configuration if best is not None and self.request.sweep.reaudit else None

    def _with_audit_result(self, configuration: Configuration, result: AuditResult | None) -> Configuration:
        """Return a configuration with the state after its audit."""
        if configuration.state != AUDITED or result is None:
            return configuration
        if result.finding is not None:
            return with_metric(configuration, result.metrics, self.request.sweep.metric)
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

    def _run(self, plan: Plan, budget_s: float | None = None) -> RunOutcome:
        store, scratch = UnitStore(self.folder / "units"), checkpoints_of(self.place)
        return run_missing(plan, store, self.events, scratch, self.began, budget_s)

    def _keep_proposals(self, proposals: Sequence[Configuration]) -> None:
        """Write the configurations that a search algorithm proposed, so that the sweep can be resumed."""
        request = replace(self.request, sweep=replace(self.request.sweep, configurations=tuple(proposals)))
        request.write(self.folder)
        self._announce(f"{len(proposals)} of {request.sweep.count} configurations were proposed and tried")

    def _announce(self, what: str) -> None:
        self.events.emit(Event(EventKind.STAGE, detail=what))


def _require_audited(configurations: Sequence[Configuration]) -> Sequence[Configuration]:
    """Return the configurations; raise RunError if none is audited."""
    if any(configuration.state == AUDITED for configuration in configurations):
        return configurations
    why = next((configuration.error for configuration in configurations if configuration.error), "all were stopped")
    raise RunError(f"none of {len(configurations)} configurations could be audited. The first error: {why}")


@dataclass(frozen=True)
class Explorer:
    """Trains the configurations of a sweep up to the last rung, for early stopping or a search algorithm."""

    request: Request
    tuner: Tuner
    run: Callable[[Plan], RunOutcome]  # runs the units of a plan
    store: UnitStore  # finished units
    at_a_time: int  # number of configurations that a search algorithm proposes before it learns their utility
    in_time: Callable[[], bool]  # False once the time budget is used up
    on_proposed: Callable[[Sequence[Configuration]], None]  # called with all configurations proposed so far

    def explore(self) -> list[Configuration]:
        """Return all configurations with their states: to be audited, stopped or failed."""
        if not self.tuner.searches:
            return list(self._run_rungs(dict(enumerate(self._without_search()))).values())
        configurations_by_name: dict[str, Configuration] = {}
        number = 0
        while number < self.request.sweep.count and self.in_time():
            batch: dict[int, Configuration] = {}
            while number < self.request.sweep.count and len(batch) < self.at_a_time:
                values = self.tuner.propose(number)
                if values is None:
                    break
                batch[number] = self.request.configuration(values)
                number += 1
            if not batch:
                break
            # The algorithm may propose a configuration twice.
            numbers = {configuration.name: key for key, configuration in batch.items()}.values()
            explored = self._run_rungs({key: batch[key] for key in numbers})
            configurations_by_name |= {configuration.name: configuration for configuration in explored.values()}
            self.on_proposed(tuple(configurations_by_name.values()))
        return list(configurations_by_name.values())

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

    def _run_rungs(self, initial: Mapping[int, Configuration]) -> dict[int, Configuration]:
        """Return configurations with their states after all rungs."""
        sweep, configurations = self.request.sweep, dict(initial)
        utility: dict[int, dict[str, float]] = {}
        for number in initial:
            self.tuner.begin(number)
        rungs = () if sweep.rungs is None else sweep.rungs.values[:-1]
        for rung_index, rung in enumerate(rungs):
            utility |= self._measure_utility(configurations, rung)
            for number, configuration in configurations.items():
                if configuration.state == AUDITED and not self.tuner.continues(number, rung_index, utility[number]):
                    metrics = {sweep.metric: utility[number][sweep.metric]}
                    configurations[number] = replace(configuration, state=STOPPED, metrics=metrics, rung=rung)
        if self.tuner.searches:
            utility |= self._measure_utility(configurations, None)
        for number, configuration in configurations.items():
            self.tuner.end(number, None if configuration.state == FAILED else utility.get(number, {}))
        return configurations

    def _measure_utility(self, configurations: dict[int, Configuration], rung: Any) -> dict[int, dict[str, float]]:
        """Return the metrics of one training of each remaining configuration at a rung; mark failed ones."""
        request = self.request
        seed = request.derived_seed("explore") if request.sweep.adaptive else request.seed
        active = [number for number, configuration in configurations.items() if configuration.state == AUDITED]
        if not self.in_time():
            configurations |= {number: replace(configurations[number], state=STOPPED, rung=rung) for number in active}
            return {}
        plans: list[tuple[Plan, dict[int, str]]] = []
        for group in [[number] for number in active] if request.sweep.adaptive else [active] * bool(active):
            try:
                plan = make_plan(request.rung_spec([configurations[number] for number in group], rung, seed=seed))
            except AuditError as err:  # known configurations were checked before anything ran
                if not request.sweep.adaptive:
                    raise
                configurations[group[0]] = _failed(configurations[group[0]], str(err))
                continue
            firsts = [next(iter(entry.trainings), "") for entry in plan.audits if not entry.confirms]
            plans.append((plan, dict(zip(group, firsts, strict=True))))
        if not plans:
            return {}
        outcome = self.run(_merge_trainings(plans))
        utility: dict[int, dict[str, float]] = {}
        for number, training in ((number, key) for _, trainings in plans for number, key in trainings.items()):
            if training and training not in outcome.finished:
                reason = last_line(outcome.failed.get(training, ""))
                why = f"the training at a rung failed, see units/{training}.failed: {reason}"
                configurations[number] = _failed(configurations[number], why)
                continue
            utility[number] = dict(outcome_metadata(self.store.schema(training)).metrics) if training else {}
            configurations[number] = with_metric(configurations[number], utility[number], request.sweep.metric)
        return utility


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


def _merge_trainings(plans: Sequence[tuple[Plan, Mapping[int, str]]]) -> Plan:
    """Return one plan with the single trainings of several plans and the units that they need."""
    units = {unit.key: unit for plan, trainings in plans for unit in plan.needed(trainings.values())}
    shared = {name: rows for plan, _ in plans for name, rows in plan.shared.items()}
    first, _ = plans[0]
    return replace(first, units=tuple(units.values()), audits=(), shared=shared)


@dataclass(frozen=True)
class Request:
    """A sweep that can run."""

    base: Audit  # the audit to vary
    sweep: Sweep  # space, goal, and the number of configurations over which the error is split
    name: str  # for reports and the default folder
    seed: int = 0  # seed of all randomness
    confidence: float = 0.95  # of all bounds together
    run: RunOptions = RunOptions()

    def __post_init__(self) -> None:
        check_fields(self)
        space = normalized_space(self.sweep.space)
        count = self.sweep.count if self.sweep.adaptive else len(configurations(space, self.sweep.samples, self.seed))
        object.__setattr__(self, "sweep", replace(self.sweep, space=space, count=count))
        data = build("data", as_data_source(self.base.data), location="data")
        object.__setattr__(self, "base", replace(self.base, data=with_absolute_paths(data)))

    @property
    def folder(self) -> Path:
        """Default folder of the sweep."""
        return Path("runs") / slug(self.name)

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """All configurations; () if a search algorithm chooses them."""
        if self.sweep.adaptive:
            return ()
        all_values = configurations(self.sweep.space, self.sweep.samples, self.seed)
        return tuple(self.configuration(values) for values in all_values)

    def configuration(self, values: Mapping[str, Any]) -> Configuration:
        """Return a configuration with its name."""
        return Configuration(configuration_name(values), dict(values))

    def audit(self, configuration: Configuration, rung: Any = None) -> Audit:
        """Return the audit of a configuration, with the field of the rungs at `rung` or at its last value."""
        audit, values = self.base, dict(configuration.values)
        if self.sweep.rungs is not None:
            values[self.sweep.rungs.field] = self.sweep.rungs.values[-1] if rung is None else rung
        try:
            for path, value in values.items():
                audit = overridden(audit, path, value)
        except SpecError as err:
            raise SpecError(f"{configuration.name}: {err}") from err
        return replace(audit, name=configuration.name)

    def spec(self, configurations: Sequence[Configuration]) -> AuditSpec:
        """Return the spec that audits the remaining configurations; the error is split over all planned ones."""
        audits = tuple(
            self.audit(configuration) for configuration in configurations if configuration.state == "audited"
        )
        sweep = replace(self.sweep, configurations=tuple(configurations))
        return AuditSpec(audits, self.name, self.seed, self.confidence, self.run, sweep=sweep)

    def rung_spec(self, configurations: Sequence[Configuration], rung: Any, *, seed: int) -> AuditSpec:
        """Return the spec of configurations at a rung; only the utility of its trainings is used."""
        audits = tuple(self.audit(configuration, rung) for configuration in configurations)
        return AuditSpec(audits, self.name, seed, self.confidence, self.run)

    def reaudit_spec(self, configuration: Configuration) -> AuditSpec:
        """Return the spec of one configuration at full confidence, with a seed that the sweep has not used."""
        audit = replace(self.audit(configuration), name=reaudit_name(configuration.name))
        seed = self.derived_seed("reaudit")
        return AuditSpec((audit,), f"{self.name}, re-audit", seed, self.confidence, self.run)

    def derived_seed(self, what: str) -> int:
        """Return a seed for work other than the sweep's audits."""
        words = Seed(self.seed).child("sweep", what).sequence().generate_state(2)
        return int.from_bytes(words.tobytes(), "little") % MAX_SEED

    def to_words(self) -> dict[str, Any]:
        """Return the request as a mapping for `read_request`."""
        values = {field.name: describe(getattr(self, field.name)) for field in fields(self) if field.name != "base"}
        return {**values, **describe(replace(self.base, name="audit"))}

    def write(self, folder: Path) -> None:
        """Write `sweep.yaml`, and save data given in memory.

        Record that this user wrote the file, so resuming needs no consent.
        """
        store_rows(self.base.data, folder)
        file = YamlFile(folder / FILE, sealed(to_yaml(self.to_words())))
        write_atomically(file.path, lambda stream: stream.write(file.content))
        note_as_own(file)


def read_request(source: str | Path | Mapping[str, Any] | Audit | AuditSpec) -> Request:
    """Return the sweep in a YAML file or a mapping, or the sweep of an audit whose space is still empty."""
    if isinstance(source, AuditSpec):
        if len(source.audits) != 1:
            raise SpecError(f"a sweep varies one audit, the spec has {len(source.audits)}")
        audit = source.audits[0]
        return _request([audit], {"name": source.name, "seed": source.seed, "run": source.run}, {}, {})
    if isinstance(source, Audit):
        return _request([source], {"name": source.name}, {}, {})
    if isinstance(source, Mapping):
        return _from_content(source)
    return request_in(YamlFile.read(Path(checked_path("a sweep", source))))


def request_in(file: YamlFile) -> Request:
    """Build the sweep that a YAML file holds."""
    request = _from_content(spec_content(file))
    # Data that were given in memory are in files next to the spec.
    return replace(request, base=replace(request.base, data=with_stored_rows(request.base.data, file.path.parent)))


def require_intact(file: YamlFile) -> None:
    """Refuse a sweep's file that was changed: in a truncated file, missing settings would become defaults."""
    path = file.path
    text, _, seal = file.text.rpartition(_SEAL)
    if seal != _seal(text):
        raise SpecError(
            f"{shortened(path)} was truncated, damaged or edited. Restore it, or check it and run "
            f"`dpaudit sweep {shortened(path)} --output {shortened(path.parent)}`"
        )


_SEAL = "# SHA-256 of all lines above: "


def sealed(text: str) -> bytes:
    """Return the content of a sweep's file: its text and a line with the hash of the text."""
    return f"{text}{_SEAL}{_seal(text)}".encode()


def _seal(text: str) -> str:
    return f"{hashlib.sha256(text.encode()).hexdigest()}\n"


def _from_content(content: Mapping[str, Any]) -> Request:
    require_yaml_values(content, "a spec")
    sweep_keys = {"sweep", "grid"}
    if "check" in content or "together" in content:
        raise SpecError("a sweep varies one audit. Leave `check` out")
    audits, options = spec_parts({name: value for name, value in content.items() if name not in sweep_keys})
    request = _request(audits, options, content.get("sweep") or {}, content.get("grid") or {})
    varied = {path.partition(".")[0] for paths in request.sweep.space for path in paths.split(",")}
    if not PARTS_OF_A_GAME.isdisjoint({*content, *varied}) or not request.sweep.space:
        return request
    first = configurations(request.sweep.space, request.sweep.count, request.seed)[0]
    audit = request.audit(request.configuration(first))
    return replace(request, base=replace(request.base, game=most_powerful_game(audit, request.seed)))


def _request(audits: list[Audit], options: Mapping[str, Any], sweep: Any, grid: Any) -> Request:
    if len(audits) != 1:
        raise SpecError(f"a sweep varies one audit, the spec has {len(audits)}; leave `audits` out")
    if not isinstance(sweep, Mapping) or not isinstance(grid, Mapping):
        raise SpecError(f"`sweep` and `grid` must be mappings, got {shortened(sweep if grid else grid)}")
    settings: Sweep = build_dataclass(Sweep, sweep, location="sweep")
    duplicates = sorted(grid.keys() & settings.space.keys())
    if duplicates:
        raise SpecError(f"{duplicates[0]} must be in `grid` or in `space`, not in both")
    settings = replace(settings, space={**grid, **settings.space})
    request: Request = build_dataclass(Request, {"base": audits[0], "sweep": settings, **options}, location="sweep")
    return request
