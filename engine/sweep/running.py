"""A sweep from its request to its result: what is tried first, then one run of all that is audited, then its report.

A request says what a sweep is asked for; the specs follow from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.actors.audited.signals import signals_interrupt
from dpaudit.actors.events import Event, EventKind, EventLog, EventStream, Listener
from dpaudit.actors.schedule import RunOutcome
from dpaudit.actors.seed import Seed
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.actors.storage.places import is_remote, join_place
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.work import outcome_metadata
from dpaudit.cluster.session import ray_session
from dpaudit.consent import Consent, apply_consent, require_network
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.sweep_summary import REAUDIT, reaudit_name, sweep_summary
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
from dpaudit.engine.sweep.result import SweepResult
from dpaudit.errors import AuditError, InputError, RunError, SpecError, did_you_mean, shortened
from dpaudit.field_checks import check_fields, checked_argument, checked_path, require_yaml_values
from dpaudit.plain_files import write_atomically

if TYPE_CHECKING:
    from ray.tune import TuneConfig

    from dpaudit.engine.sweep.tuning import Tuner

FILE = "sweep.yaml"


def sweep(
    spec: Audit | AuditSpec | str | Path | Mapping[str, Any],
    space: Mapping[str, Any] | None = None,
    *,
    maximise: str | None = None,
    minimise: str | None = None,
    subject_to: SubjectTo | Mapping[str, float] | None = None,
    rungs: Rungs | Mapping[str, Any] | None = None,
    reaudit: bool | None = None,
    tune_config: TuneConfig | None = None,
    output: str | Path | None = None,
    seed: int | None = None,
    listeners: Sequence[Listener] = (),
    quiet: bool = False,
) -> SweepResult:
    """Trains and audits every configuration of a space, and says which is most useful for what is known of its epsilon.

    All bounds hold together with the spec's confidence: the error is split over the configurations, whose number is
    fixed beforehand.

    Args:
        spec: One audit, as for `dpaudit.audit`; a spec may say in `grid` and `sweep` what is varied and wanted.
        space: From a field, such as "mechanism.epsilon", to a list, `tune.grid_search`, `tune.choice`, `tune.uniform`,
            `tune.loguniform`, `tune.randint` or `tune.lograndint`; beside what the spec varies.
        maximise: The metric that is wanted large: "test accuracy" when nothing is said.
        minimise: The metric that is wanted small, instead.
        subject_to: Limits of the best configuration, `{"epsilon": 2}` or `{"audited_epsilon": 1}`.
        rungs: Early stopping by utility: `{"field": "mechanism.model.epochs", "values": [1, 3, 9]}`.
        reaudit: Whether the best configuration is audited afresh at full confidence.
        tune_config: Of Ray Tune: `num_samples`, `scheduler`, `search_alg`, `max_concurrent_trials`, `time_budget_s`,
            and `metric` and `mode` where nothing else says what is wanted.
        output: The folder, a path that every worker sees or a URI; one that holds this sweep is continued. Left out:
            `runs/<name>`.
        seed: Overrides the spec's seed.
        listeners: Told of every event while it happens, instead of the progress on standard error.
        quiet: Show no progress.
    Returns: The result; the same content is in the folder.
    Raises: SpecError and DataError for bad input; RunError when no configuration could be audited.
    """
    request = read_request(spec)
    given: dict[str, Any] = {
        "maximise": checked_argument("maximise", maximise, str | None),
        "minimise": checked_argument("minimise", minimise, str | None),
        "subject_to": _described(SubjectTo, subject_to, "subject_to"),
        "rungs": _described(Rungs, rungs, "rungs"),
        "reaudit": reaudit,
    }
    if maximise or minimise:
        given = {"maximise": "", "minimise": "", **{name: value for name, value in given.items() if value is not None}}
    wanted = replace(request.sweep, **{name: value for name, value in given.items() if value is not None})
    varied = checked_argument("space", space, Mapping | None) or {}
    require_yaml_values(varied, "space")
    request = replace(request, sweep=_with_tune(replace(wanted, space={**wanted.space, **varied}), tune_config))
    if seed is not None:
        request = replace(request, seed=seed)
    place = place_of(output) if output is not None else request.folder
    return carry_out(request, place, tune_config, listeners=listeners, quiet=quiet)


def _described(made: type[SubjectTo | Rungs], value: Any, name: str) -> Any:
    """A part of a sweep from its fields in words, if they are words."""
    if not isinstance(value, Mapping):
        return value
    require_yaml_values(value, name)
    return build_dataclass(made, value, location=name)


def _with_tune(wanted: Sweep, config: TuneConfig | None) -> Sweep:
    """What Tune's settings say of the sweep itself."""
    if config is None:
        return wanted
    tune = sys.modules.get("ray.tune")
    if tune is None or not isinstance(config, tune.TuneConfig):
        raise InputError(f"tune_config must be a ray.tune.TuneConfig, got {type(config).__name__}")
    if config.metric and not (wanted.maximise or wanted.minimise):
        name = "minimise" if config.mode == "min" else "maximise"
        wanted = replace(wanted, **{name: config.metric})
    adaptive = config.search_alg is not None
    grids = [path for path, axis in wanted.space.items() if isinstance(axis, list)]
    if adaptive and grids:
        raise SpecError(f"{grids[0]}: a search algorithm draws values, use tune.choice instead of a grid")
    if adaptive and wanted.metric.endswith("_epsilon"):
        raise SpecError("a search algorithm may look at utility alone: what it chose by bounds would not be covered")
    samples = config.num_samples if config.num_samples != 1 else wanted.samples
    return replace(wanted, samples=samples, adaptive=adaptive, count=samples if adaptive else wanted.count)


def restore_sweep(
    folder: str | Path,
    *,
    allow_code: bool = False,
    allow_network: bool = False,
    allow_files: bool = False,
    listeners: Sequence[Listener] = (),
    quiet: bool = False,
) -> SweepResult:
    """Goes on with a sweep: nothing that is finished is run again.

    Args:
        folder: The sweep's folder, a path or a URI.
        allow_code: Whether it may have code imported and run though this user did not write it.
        allow_network: Whether it may have requests sent, and values of environment variables with them, likewise.
        allow_files: Whether it may name files and folders outside of its own, likewise.
        listeners: As in `sweep`.
        quiet: Show no progress.
    Raises: SpecError when it is no sweep's folder, or somebody else's that asks for more than is allowed; RunError when
        it cannot go on.
    """
    place = place_of(folder)
    asked = Consent(allow_code, allow_network, allow_files)
    if not is_sweep(place):
        raise SpecError(
            f"{shortened(place)} must be the folder of a sweep (with {FILE} in it); `dpaudit sweep SPEC` makes one"
        )
    with open_run_folder(place) as here:
        file = YamlFile.read_plain(here / FILE)
        consent = consent_for(file, asked)
        require_whole(file)
        with apply_consent(consent):
            request = request_in(file)
    with apply_consent(consent):
        return carry_out(request, place, None, listeners=listeners, quiet=quiet)


def is_sweep(place: str | Path) -> bool:
    """Whether a sweep was begun in a folder, which may have a URI."""
    try:
        return bool(FileStore.at(place).info(FILE).is_file)
    except (OSError, RunError):  # a name too long, or a store that does not answer
        return False


@dataclass(frozen=True)
class SweepOutline:
    """What a sweep is going to run, before anything runs."""

    spec: AuditSpec  # one audit for each configuration
    besides: tuple[str, ...]  # further trainings and audits, one sentence each


def outlined(source: str | Path, seed: int | None = None) -> SweepOutline:
    """Return the audits that a sweep's file leads to; nothing runs.

    Raises: SpecError for a sweep that varies nothing.
    """
    request = read_request(source)
    request = request if seed is None else replace(request, seed=seed)
    _require_space(request)
    beside = []
    if request.sweep.rungs is not None:
        more = len(request.known) * (len(request.sweep.rungs.values) - 1)
        beside.append(
            f"early stopping runs up to {more} trainings more, one for each configuration at each rung; configurations "
            "that it stops are not audited"
        )
    if request.sweep.reaudit:
        beside.append("the best configuration is audited once more, with a new seed")
    return SweepOutline(request.spec(request.known), tuple(beside))


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
    """Runs what is missing of a sweep and reads what came out."""
    began = time.monotonic()
    _require_space(request)
    known = request.known
    if known:
        plan = make_plan(request.spec(known))  # refuses what does not fit before anything runs
        require_network(plan.spec, plan.price)
    else:
        require_network((request.base, request.run, request.sweep), lambda: "")
    _require_plannable(request)
    tuner = _tuner(request, config)
    with event_listeners(listeners, quiet=quiet) as listening:
        with _running(request, place, listening, began) as running:
            configurations = list(known) if tuner is None else running.explored(tuner, config)
            plan, best = running.audited(configurations, None if config is None else config.time_budget_s)
        if best is not None:
            again = join_place(place, REAUDIT) if is_remote(place) else Path(place) / REAUDIT
            run_plan(make_plan(request.again(best)), again, listening)
        return SweepResult(run_plan(plan, place, listening))


def _require_plannable(request: Request) -> None:
    """Plan what is not in the plan of all configurations, so that a wrong field is refused before anything runs.

    That is the first configuration at each rung; of a search algorithm, whose configurations are not known, the first
    one that its space would give without it.
    """
    rungs = () if request.sweep.rungs is None else request.sweep.rungs.values
    if not rungs and request.known:
        return
    first = request.configuration(configurations(request.sweep.space, request.sweep.count, request.seed)[0])
    for rung in rungs or (None,):
        make_plan(request.rung_spec([first], rung, seed=request.seed))


def _tuner(request: Request, config: TuneConfig | None) -> Tuner | None:
    """Ray Tune's part, which takes seconds to load; None where all configurations are known and none is left out."""
    if config is None and request.sweep.rungs is None and not request.sweep.adaptive:
        return None
    from ray.tune import TuneConfig

    from dpaudit.engine.sweep.tuning import Tuner

    return Tuner(request.sweep, config or TuneConfig())


@contextlib.contextmanager
def _running(request: Request, place: str | Path, listeners: Sequence[Listener], began: float) -> Iterator[_Running]:
    """A sweep whose folder no other driver holds; a Ray session that is asked for stays for all of it."""
    on_ray = request.run.runner_if_settled() == "ray"
    with (
        open_run_folder(place, listeners) as folder,
        locked_folder(folder),
        ray_session(request.run.address) if on_ray else contextlib.nullcontext(),
        signals_interrupt(),
    ):
        request.write(folder)
        with contextlib.closing(EventLog(folder / "events.jsonl")) as log:
            yield _Running(request, folder, place, EventStream(log, *listeners), began)


@dataclass(frozen=True)
class _Running:
    """A sweep that is carried out."""

    request: Request  # the sweep
    folder: Path  # its working folder
    place: str | Path  # the same, a path or a URI
    events: EventStream  # told of what happens
    began: float  # when it began, by `time.monotonic`

    def explored(self, tuner: Tuner, config: TuneConfig | None) -> list[Configuration]:
        """The configurations after those were left out that early stopping stops."""
        limit = None if config is None else config.time_budget_s
        at_a_time = None if config is None else config.max_concurrent_trials
        self._say(f"trying {self.request.sweep.count} configurations")
        return Explorer(
            self.request,
            tuner,
            self._run,
            UnitStore(self.folder / "units"),
            at_a_time or self.request.run.workers or os.cpu_count() or 1,
            lambda: limit is None or time.monotonic() - self.began <= limit,
            self._keep,
        ).explored()

    def audited(self, tried: Sequence[Configuration], budget_s: float | None) -> tuple[Plan, Configuration | None]:
        """Audits those that are left, all in one plan.

        Returns: The plan of the report, and the configuration to be audited afresh, where that was asked for.
        """
        plan = make_plan(self.request.spec(_some_audited(tried)))
        self._note(tried, plan)
        self._say(f"auditing {len(plan.audits)} configurations")
        outcome = self._run(plan, budget_s)
        results = Policy(plan, UnitStore(self.folder / "units")).results(outcome, self.folder)
        found = {result.name: result for result in results}
        configurations = [self._became(one, found.get(one.name)) for one in tried]
        self._note(configurations, plan, over=True)
        plan = make_plan(self.request.spec(_some_audited(configurations)))
        assert plan.spec.sweep is not None
        best = sweep_summary(plan.spec.sweep, results, plan.spec.confidence).best
        return plan, best.configuration if best is not None and self.request.sweep.reaudit else None

    def _became(self, one: Configuration, result: AuditResult | None) -> Configuration:
        """A configuration after its audit."""
        if one.state != AUDITED or result is None:
            return one
        if result.finding is not None:
            return with_metric(one, result.metrics, self.request.sweep.metric)
        if not result.failures:
            return replace(one, state=STOPPED)
        why = next((f"{failure.label}: {failure.error}" for failure in result.failures if not failure.skipped), "")
        return replace(one, state=FAILED, error=f"{one.name}: {why or result.headline}")

    def _note(self, configurations: Sequence[Configuration], plan: Plan, *, over: bool = False) -> None:
        """Write which units audit each configuration, for `dpaudit status`; `over` once all have been run."""
        units = {entry.audit.name: sorted(entry.keys) for entry in plan.audits if not entry.confirms}
        noted = [{"name": one.name, "state": one.state, "units": units.get(one.name, [])} for one in configurations]
        content = json.dumps({"over": over, "configurations": noted}).encode()
        write_atomically(self.folder / CONFIGURATIONS, lambda file: file.write(content))

    def _run(self, plan: Plan, budget_s: float | None = None) -> RunOutcome:
        store, scratch = UnitStore(self.folder / "units"), checkpoints_of(self.place)
        return run_missing(plan, store, self.events, scratch, self.began, budget_s)

    def _keep(self, drawn: Sequence[Configuration]) -> None:
        """Keeps what a search algorithm has chosen, for when the sweep is continued."""
        request = replace(self.request, sweep=replace(self.request.sweep, configurations=tuple(drawn)))
        request.write(self.folder)
        self._say(f"{len(drawn)} of {request.sweep.count} configurations were proposed and tried")

    def _say(self, what: str) -> None:
        self.events.emit(Event(EventKind.STAGE, detail=what))


def _some_audited(configurations: Sequence[Configuration]) -> Sequence[Configuration]:
    """The configurations; refused where there is nothing to report."""
    if any(one.state == AUDITED for one in configurations):
        return configurations
    why = next((one.error for one in configurations if one.error), "all were stopped")
    raise RunError(f"none of {len(configurations)} configurations could be audited; the first: {why}")


@dataclass(frozen=True)
class Explorer:
    """Tries configurations of a sweep."""

    request: Request  # the sweep
    tuner: Tuner  # says what is tried and what goes on
    run: Callable[[Plan], RunOutcome]  # runs the units of a plan
    store: UnitStore  # where finished units are
    at_a_time: int  # how many configurations a search algorithm proposes before it is told of them
    in_time: Callable[[], bool]  # whether anything may be begun still
    # Told of all configurations that a search algorithm has proposed so far, so that they are kept
    drawn: Callable[[Sequence[Configuration]], None]

    def explored(self) -> list[Configuration]:
        """All configurations: those that are to be audited, those that were stopped and those that failed."""
        if not self.tuner.searches:
            return list(self._tried(dict(enumerate(self._without_search()))).values())
        found: dict[str, Configuration] = {}
        number = 0
        while number < self.request.sweep.count and self.in_time():
            batch: dict[int, Configuration] = {}
            while number < self.request.sweep.count and len(batch) < self.at_a_time:
                values = self.tuner.proposed(number)
                if values is None:
                    break
                batch[number] = self.request.configuration(values)
                number += 1
            if not batch:
                break
            one_each = {one.name: place for place, one in batch.items()}  # it may draw one twice
            tried = self._tried({place: batch[place] for place in one_each.values()})
            found |= {one.name: one for one in tried.values()}
            self.drawn(tuple(found.values()))
        return list(found.values())

    def _without_search(self) -> tuple[Configuration, ...]:
        """Those that are known; of a search that is continued without its algorithm, those it chose and drawn ones."""
        request = self.request
        if not request.sweep.adaptive:
            return request.known
        chosen = {one.name: request.configuration(one.values) for one in request.sweep.configurations}
        drawn = configurations(request.sweep.space, request.sweep.count, request.seed)
        for one in map(request.configuration, drawn):
            if len(chosen) < request.sweep.count:
                chosen.setdefault(one.name, one)
        return tuple(chosen.values())

    def _tried(self, ones: Mapping[int, Configuration]) -> dict[int, Configuration]:
        """What becomes of some configurations, rung by rung."""
        sweep, found = self.request.sweep, dict(ones)
        utility: dict[int, dict[str, float]] = {}
        for number in ones:
            self.tuner.begin(number)
        rungs = () if sweep.rungs is None else sweep.rungs.values[:-1]
        for place, rung in enumerate(rungs):
            utility |= self._measured(found, rung)
            for number, one in found.items():
                if one.state == AUDITED and not self.tuner.goes_on(number, place, utility[number]):
                    wanted = {sweep.metric: utility[number][sweep.metric]}
                    found[number] = replace(one, state=STOPPED, metrics=wanted, rung=rung)
        if self.tuner.searches:
            utility |= self._measured(found, None)
        for number, one in found.items():
            self.tuner.end(number, None if one.state == FAILED else utility.get(number, {}))
        return found

    def _measured(self, found: dict[int, Configuration], rung: Any) -> dict[int, dict[str, float]]:
        """Utility of one training each at a rung, of those that go on; those that have none are marked as failed."""
        request = self.request
        seed = request.other_seed("explore") if request.sweep.adaptive else request.seed
        going = [number for number, one in found.items() if one.state == AUDITED]
        if not self.in_time():
            found |= {number: replace(found[number], state=STOPPED, rung=rung) for number in going}
            return {}
        plans: list[tuple[Plan, dict[int, str]]] = []
        for group in [[number] for number in going] if request.sweep.adaptive else [going] * bool(going):
            try:
                plan = make_plan(request.rung_spec([found[number] for number in group], rung, seed=seed))
            except AuditError as err:  # of what is known it is said before anything runs
                if not request.sweep.adaptive:
                    raise
                found[group[0]] = _failed(found[group[0]], str(err))
                continue
            firsts = [next(iter(entry.trainings), "") for entry in plan.audits if not entry.confirms]
            plans.append((plan, dict(zip(group, firsts, strict=True))))
        if not plans:
            return {}
        finished = self.run(_merged(plans)).finished
        utility: dict[int, dict[str, float]] = {}
        for number, training in ((number, key) for _, trainings in plans for number, key in trainings.items()):
            if training and training not in finished:
                why = f"the training at a rung failed; units/{training}.failed says why"
                found[number] = _failed(found[number], why)
                continue
            utility[number] = dict(outcome_metadata(self.store.schema(training)).metrics) if training else {}
            found[number] = with_metric(found[number], utility[number], request.sweep.metric)
        return utility


def with_metric(one: Configuration, metrics: Mapping[str, float], wanted: str) -> Configuration:
    """The configuration; failed where it has not the metric that is wanted large or small."""
    if wanted in metrics:
        return one
    names = ", ".join(metrics) or "none"
    return _failed(
        one, f"no metric {wanted!r} to be wanted large or small; it has {names}{did_you_mean(wanted, metrics)}"
    )


def _failed(one: Configuration, why: str) -> Configuration:
    return replace(one, state=FAILED, error=f"{one.name}: {why}")


def _merged(plans: Sequence[tuple[Plan, Mapping[int, str]]]) -> Plan:
    """One plan of single trainings and what they need."""
    units = {unit.key: unit for plan, trainings in plans for unit in plan.needed(trainings.values())}
    shared = {name: rows for plan, _ in plans for name, rows in plan.shared.items()}
    first, _ = plans[0]
    return replace(first, units=tuple(units.values()), audits=(), shared=shared)


@dataclass(frozen=True)
class Request:
    """A sweep that can be carried out."""

    base: Audit  # the audit that is varied, as it was written
    sweep: Sweep  # what is varied, its space in words, and over how many configurations the error is split
    name: str  # for reports and the default folder
    seed: int = 0  # everything random follows from it
    confidence: float = 0.95  # of all bounds together
    run: RunOptions = RunOptions()  # where the work runs

    def __post_init__(self) -> None:
        check_fields(self)
        space = normalized_space(self.sweep.space)
        count = self.sweep.count if self.sweep.adaptive else len(configurations(space, self.sweep.samples, self.seed))
        object.__setattr__(self, "sweep", replace(self.sweep, space=space, count=count))
        data = build("data", as_data_source(self.base.data), location="data")
        object.__setattr__(self, "base", replace(self.base, data=with_absolute_paths(data)))

    @property
    def folder(self) -> Path:
        """Where the sweep goes when nothing else is said."""
        return Path("runs") / slug(self.name)

    @property
    def known(self) -> tuple[Configuration, ...]:
        """All configurations, where they are known beforehand; none where a search algorithm chooses them."""
        if self.sweep.adaptive:
            return ()
        found = configurations(self.sweep.space, self.sweep.samples, self.seed)
        return tuple(self.configuration(values) for values in found)

    def configuration(self, values: Mapping[str, Any]) -> Configuration:
        """A configuration with its name; the field that rungs raise stands at its last value."""
        return Configuration(configuration_name(values), dict(values))

    def audit(self, one: Configuration, rung: Any = None) -> Audit:
        """The audit of a configuration; the field of the rungs at `rung`, or at what is audited."""
        audit, values = self.base, dict(one.values)
        if self.sweep.rungs is not None:
            values[self.sweep.rungs.field] = self.sweep.rungs.values[-1] if rung is None else rung
        try:
            for path, value in values.items():
                audit = overridden(audit, path, value)
        except SpecError as err:
            raise SpecError(f"{one.name}: {err}") from err
        return replace(audit, name=one.name)

    def spec(self, ones: Sequence[Configuration]) -> AuditSpec:
        """The spec of some configurations: each audited one is an audit, and the error is split over all planned."""
        audits = tuple(self.audit(one) for one in ones if one.state == "audited")
        sweep = replace(self.sweep, configurations=tuple(ones))
        return AuditSpec(audits, self.name, self.seed, self.confidence, self.run, sweep=sweep)

    def rung_spec(self, ones: Sequence[Configuration], rung: Any, *, seed: int) -> AuditSpec:
        """The spec of some configurations at a rung; nothing is concluded from their audits but utility."""
        audits = tuple(self.audit(one, rung) for one in ones)
        return AuditSpec(audits, self.name, seed, self.confidence, self.run)

    def again(self, one: Configuration) -> AuditSpec:
        """The spec of one configuration with a seed that no trial of the sweep used, at full confidence."""
        audit = replace(self.audit(one), name=reaudit_name(one.name))
        seed = self.other_seed("reaudit")
        return AuditSpec((audit,), f"{self.name}, re-audit", seed, self.confidence, self.run)

    def other_seed(self, what: str) -> int:
        """A seed for something else than the sweep's audits."""
        words = Seed(self.seed).child("sweep", what).sequence().generate_state(2)
        return int.from_bytes(words.tobytes(), "little") % MAX_SEED

    def to_words(self) -> dict[str, Any]:
        """The request as `read_request` takes it."""
        about = {field.name: describe(getattr(self, field.name)) for field in fields(self) if field.name != "base"}
        return {**about, **describe(replace(self.base, name="audit"))}

    def write(self, folder: Path) -> None:
        """Writes `sweep.yaml`, noted as this user's, and beside it the rows that have no file of their own."""
        store_rows(self.base.data, folder)
        made = YamlFile(folder / FILE, sealed(to_yaml(self.to_words())))
        write_atomically(made.path, lambda file: file.write(made.content))
        note_as_own(made)


def read_request(source: str | Path | Mapping[str, Any] | Audit | AuditSpec) -> Request:
    """A sweep from a YAML file, a mapping like its content, or an audit without anything that is varied yet."""
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
    # The rows of a folder's sweep that were given in memory lie beside it.
    return replace(request, base=replace(request.base, data=with_stored_rows(request.base.data, file.path.parent)))


def require_whole(file: YamlFile) -> None:
    """Refuses a sweep's file of a folder that is not what was written: what was cut off would count as left out."""
    path = file.path
    text, _, seal = file.text.rpartition(_SEAL)
    if seal != _seal(text):
        raise SpecError(
            f"{shortened(path)} must be as it was written, it was cut, damaged or edited; put back what was there, or "
            f"read it, then `dpaudit sweep {shortened(path)} --output {shortened(path.parent)}` goes on with it"
        )


_SEAL = "# SHA-256 of all lines above: "


def sealed(text: str) -> bytes:
    """The content of a sweep's file: its text, and a line with the hash of it."""
    return f"{text}{_SEAL}{_seal(text)}".encode()


def _seal(text: str) -> str:
    return f"{hashlib.sha256(text.encode()).hexdigest()}\n"


def _from_content(content: Mapping[str, Any]) -> Request:
    require_yaml_values(content, "a spec")
    own = {"sweep", "grid"}
    if "check" in content or "together" in content:
        raise SpecError("a sweep varies one audit: leave `check` out")
    audits, options = spec_parts({name: value for name, value in content.items() if name not in own})
    return _request(audits, options, content.get("sweep") or {}, content.get("grid") or {})


def _request(audits: list[Audit], options: Mapping[str, Any], sweep: Any, grid: Any) -> Request:
    if len(audits) != 1:
        raise SpecError(f"a sweep varies one audit, the spec has {len(audits)}; leave `audits` out")
    if not isinstance(sweep, Mapping) or not isinstance(grid, Mapping):
        raise SpecError(f"`sweep` and `grid` must be mappings, got {shortened(sweep if grid else grid)}")
    made: Sweep = build_dataclass(Sweep, sweep, location="sweep")
    twice = sorted(grid.keys() & made.space.keys())
    if twice:
        raise SpecError(f"{twice[0]} must stand in `grid` or in `space`, not in both")
    made = replace(made, space={**grid, **made.space})
    request: Request = build_dataclass(Request, {"base": audits[0], "sweep": made, **options}, location="sweep")
    return request
