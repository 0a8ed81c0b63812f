"""A hundred GPU nodes, simulated: two tables of the papers and a sweep, by the real planner, schedule and pool.

    python -m benchmarks.hundred_gpu_nodes --rows              # made data with the counts of the real ones
    python -m benchmarks.hundred_gpu_nodes --data FOLDER       # real data: a folder with cifar10 and sst2

The specs are those of `dpaudit reproduce` at the paper's scale and of `dpaudit sweep`. `make_plan` yields the units,
and `simulated_ray` plays them. No GPU was at hand: a training's seconds are its counted operations at an assumed speed.
All other units are timed in a small run of the same games, and scaled by pieces and rows. The inputs are in
`docs/data/hundred-gpu-nodes-inputs.csv`.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulated_ray import DETECTED_S, STARTED_S, Cluster, Overheads, Played, Work, play
from dpaudit.actors.events import EventKind, EventLog, read_events
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Call
from dpaudit.engine.games.proxies import CalibratedModel, ModelProxy
from dpaudit.engine.planning.plan import Plan, PlannedAudit, make_plan, pieces_of
from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.engine.run.driver import run_plan
from dpaudit.engine.sweep.running import outlined
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.learners.pate import PateFm
from dpaudit.mechanisms.models.networks import Mlp, Network
from papers import bayesian_table_2, image_tables, label_tables
from papers.reproduction import Options
from papers.training_operations import SUSTAINED_FLOPS, fixmatch_step_flops, training_flops
from tools.rows import DATA, Row, measured_here, note_origin, read_rows, setting, write

NODES, CPUS = 100, 8
IMAGES, TEXTS = "cifar10", "sst2"
"""Folder of CIFAR-10's binary batches in the folder of all data."""
SPREAD = 0.1
"""Assumed standard deviation of the logarithm of a unit's duration."""
CHECKPOINT_S = 300.0
"""Longest work that a checkpointed training loses."""
DYING = 0.1
"""Share of nodes that die, at uniformly random times of the run without deaths."""
BUSY = 0.9
"""Goal for the share of GPUs with a unit."""
NO_LIMIT_S = 1e9
"""Stated time limit of a unit: the derived one would end the longest trainings."""
CONSTANT_S = 1.0
"""Assumed seconds of a predictor that trains no network, next to which the papers' bounds stand."""
HOUR_S, GB = 3600.0, 1e9
SEEDS = range(5)


@dataclass(frozen=True)
class Rates:
    """Unit costs.

    Attributes:
        flops: Operations of a GPU per second.
        single_gradients: Factor of a training by DP-SGD on an ordinary one.
        seconds: Processor seconds of a unit without a GPU, by kind, for one piece and row.
        file_bytes: Bytes of a unit's file, by kind, for one piece and row.
    """

    flops: float
    single_gradients: float
    seconds: Mapping[str, float]
    file_bytes: Mapping[str, float]


def kind_of(unit: Unit) -> str:
    """Return the function of a unit and its label without numbers, names of audits and dots."""
    if unit.function_name.startswith("bound_"):
        return unit.function_name
    return f"{unit.function_name}: {re.sub('[0-9]+', '#', unit.label)}"


def pieces(unit: Unit) -> int:
    """Return the number of models or replays of a unit; those of the evidence that it counts at once, if it does."""
    evidence = getattr(unit.task, "argument", lambda _: None)("evidence")
    call = getattr(evidence, "call", None)
    if isinstance(call, Call):
        return max(1, int(call.argument("last", 1)) - int(call.argument("first", 0)))
    return pieces_of(unit)


def rows_of(entry: PlannedAudit) -> int:
    """Return the rows to which the costs of an audit's units are proportional: of the pool, or canaries."""
    assert entry.game.reference is not None
    return dict(entry.rows)["target"] if entry.game.shadows else entry.game.reference.rows


def measured_rates(plans: Iterable[Plan], folder: Path) -> Rates:
    """Run small plans in this process and return the costs of their units."""
    seconds, sizes = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for number, plan in enumerate(plans):
        run_plan(plan, folder / f"{number}", [lambda _: None])
        for entry in plan.audits:
            units = {unit.key: unit for unit in entry.units}
            for event in read_events(folder / f"{number}" / "events.jsonl"):
                if event.kind is EventKind.UNIT_DONE and event.unit in units:
                    unit = units[event.unit]
                    parts = pieces(unit) * rows_of(entry)
                    seconds[kind_of(unit)].append(event.seconds / parts)
                    file = folder / f"{number}" / "units" / f"{unit.key}.parquet"
                    sizes[kind_of(unit)].append(file.stat().st_size / parts)
    plain, private = (
        float(row.value)
        for work in ("20,000 rows, 64-64-64-2, one epoch", "20,000 rows by DP-SGD")
        for row in read_rows(DATA / "stacks-against-jax.csv")
        if row.settings()["work"].startswith(work) and row.what == "ours"
    )
    return Rates(
        SUSTAINED_FLOPS,
        private / plain,
        {kind: statistics.median(values) for kind, values in seconds.items()},
        {kind: statistics.median(values) for kind, values in sizes.items()},
    )


def work_of(plan: Plan, rates: Rates) -> Work:
    """Return the units of a plan with their costs."""
    seconds: dict[str, float] = {}
    sizes: dict[str, int] = dict.fromkeys((unit.key for unit in plan.units), 0)
    for entry in plan.audits:
        assert entry.game.reference is not None
        in_all = entry.audit.estimator.seconds(entry.game.replays, entry.game.reference.rows)
        seconds |= {unit.key: in_all / len(entry.bounds) for unit in entry.bounds}
        units = {unit.key: unit for unit in entry.units}
        for key, unit in units.items():
            parts = pieces(unit) * rows_of(entry)
            learner = learner_of(unit)
            if learner is None:
                seconds[key] = rates.seconds[kind_of(unit)] * parts
            else:
                seconds[key] = _training_seconds(unit, learner, entry, plan, rates, units)
            sizes[key] = math.ceil(rates.file_bytes.get(kind_of(unit), 0.0) * parts)
    # One draw a unit in the order of the plan, so that the numbers do not depend on keys, which change with the code.
    draws = np.random.default_rng(plan.spec.seed).lognormal(-(SPREAD**2) / 2, SPREAD, len(plan.units))
    spread = {unit.key: seconds[unit.key] * float(draw) for unit, draw in zip(plan.units, draws, strict=True)}
    shared = {name: int(getattr(getattr(rows, "features", rows), "nbytes", 0)) for name, rows in plan.shared.items()}
    return Work(plan.units, spread, sizes, shared)


def learner_of(unit: Unit) -> Any:
    """Return the learner that a unit trains on a GPU, which may be the model of a proxy; None if it trains none.

    Raises: ValueError if a unit holds a GPU and no argument of it, or field of an argument, has a network.
    """
    if not unit.resources.gpus or not isinstance(unit.task, Call):
        return None
    arguments = [value for _, value in unit.task.arguments]
    parts = [getattr(value, field.name) for value in arguments if is_dataclass(value) for field in fields(value)]
    for value in (*arguments, *parts):
        if hasattr(value, "fit") and hasattr(value, "model"):
            return value
        if isinstance(value, ModelProxy | CalibratedModel):
            return NonPrivate(value.model)
    raise ValueError(f"no learner is known for the unit {unit.label!r}, which calls {unit.function_name}")


def _training_seconds(
    unit: Unit, learner: Any, entry: PlannedAudit, plan: Plan, rates: Rates, units: Mapping[str, Unit]
) -> float:
    """Return the seconds of a unit that trains models; a unit may train some of the networks of PATE-FM."""
    if not isinstance(learner.model, Network):
        return CONSTANT_S
    part = next(name for name in unit.shared if name.partition(":")[0] in ("target", "reference"))
    rows: Any = plan.shared[part]
    shape, classes = tuple(rows.features.shape[1:]), rows.classes
    if isinstance(learner, PateFm) and (steps := _steps_of_part(unit, learner, units)):
        return steps * fixmatch_step_flops(learner, shape, classes) / rates.flops
    used, _ = entry.audit.game.traits.run_on(entry.audit.game, len(rows))
    flops = training_flops(learner, used, shape, classes) * pieces(unit)
    return flops / rates.flops * (rates.single_gradients if isinstance(learner, DpSgd) else 1.0)


def _steps_of_part(unit: Unit, learner: PateFm, units: Mapping[str, Unit]) -> int:
    """Return the steps of a unit that trains some teachers, or the student; 0 if one unit trains all of them."""
    assert isinstance(unit.task, Call)
    if unit.task.argument("last") is not None:
        return pieces_of(unit) * learner.teacher_steps
    needed = [key for key in unit.needs if key in units]
    while needed:
        need = units[needed.pop()]
        if learner_of(need) == learner:
            return learner.student_steps
        needed += [key for key in need.needs if key in units]
    return 0


# The three workloads


def image_plan(data: Path, seed: int) -> Plan:
    """Return the plan of Table 1 of arXiv:2511.14084 for one seed."""
    options = image_tables.on_gpus(Options(data, data=data, scale="paper", seed=seed))
    return make_plan(label_tables.requested_audits(image_tables.study(options), options.seed, options))


def bayesian_plan(data: Path, stack: int | None = None) -> Plan:
    """Return the plan of Table 2 of arXiv:2206.05199; `stack` replaces the number of models of a unit."""
    options = Options(data, data=data, scale="paper")
    size = bayesian_table_2.SIZES["paper"]
    size = size if stack is None else replace(size, stack=stack)
    return make_plan(bayesian_table_2.requested_audits(bayesian_table_2.table_studies(options), size, options))


SWEEP = """
name: LP-1ST on CIFAR-10, swept
seed: 2026
data: {{name: cifar-10, path: {path}}}
split: {{target: 0.4, reference: 0.4, test: 0.2}}
game: {{name: label-inference, canaries: 10000}}
proxy: {{name: model, model: {{name: resnet-18, epochs: 200}}}}
mechanism: {{name: lp-1st, epsilon: 1, model: {{name: resnet-18, epochs: 200}}}}
grid:
  mechanism.epsilon: [0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 10]
  mechanism.model.learning_rate: [0.05, 0.1, 0.2, 0.4, 0.8]
  mechanism.model.weight_decay: [0.0, 1.0e-4, 5.0e-4, 1.0e-3]
sweep: {{maximise: test accuracy}}
"""
"""200 configurations: ten values of epsilon, five step sizes, four weight decays."""


def sweep_plan(data: Path, folder: Path) -> Plan:
    """Return the plan of the sweep, whose file is written into `folder`."""
    file = folder / "sweep.yaml"
    file.write_text(SWEEP.format(path=data / IMAGES), encoding="utf-8")
    run = RunOptions(keep_scores=False, figures=False)
    with_gpus = image_tables.on_gpus(Options(folder, scale="paper", run=run)).run
    return make_plan(replace(outlined(file)[0], run=with_gpus))


def small_plans(folder: Path) -> Iterator[Plan]:
    """Yield plans of the same games with small networks and data, to time the units that do not train."""
    options = Options(folder, seed=1, run=RunOptions(runner="in-process", repeats=0, figures=False))
    tiny = Mlp(hidden=(16,), epochs=1)
    few = replace(
        image_tables.SMALL_PATE_FM,
        epsilon=math.inf,
        teachers=4,
        queries=40,
        answers=10,
        threshold=1.0,
        teacher_steps=1,
        student_steps=1,
    )
    study = replace(
        image_tables.study(options),
        learners={"LP-1ST": lambda _: NonPrivate(tiny), "PATE-FM": lambda _: few},
        epsilons=(1.0,),
        proxy=ModelProxy(tiny),
    )
    yield make_plan(label_tables.requested_audits(study, options.seed, options))
    size = bayesian_table_2.Size(trials=32, shadows=32, stack=16, rows=400)
    images, texts = bayesian_table_2.table_studies(options)
    studies = images, replace(texts, data=replace(texts.data, rows=400))
    yield make_plan(bayesian_table_2.requested_audits(studies, size, options))


def make_data(folder: Path, images: int = 10_000, texts: int = 67_349) -> None:
    """Write made data in the formats and with the counts of CIFAR-10 (`images` a batch) and of SST-2."""
    rng = np.random.default_rng(0)
    for batch in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        records = rng.integers(0, 256, (images, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / IMAGES).mkdir(parents=True, exist_ok=True)
        records.tofile(folder / IMAGES / batch)
    lines = (f"{' '.join(f'w{word}' for word in rng.integers(0, 9999, 9))}\t{row % 2}" for row in range(texts))
    (folder / TEXTS).mkdir(parents=True, exist_ok=True)
    (folder / TEXTS / "train.tsv").write_text("\n".join(("sentence\tlabel", *lines, "")), encoding="utf-8")


# Scenarios and rows


@dataclass(frozen=True)
class Workload:
    """Plans that one driver runs together.

    Attributes:
        name: Name in the table.
        work: The units and their costs.
        planning_s: Processor seconds of planning.
    """

    name: str
    work: Work
    planning_s: float


def workload(name: str, rates: Rates, *planners: Callable[[], Plan]) -> Workload:
    """Plan, and return the units with their costs; the data of one plan are dropped before the next one is made."""
    works, planning_s = list[Work](), 0.0
    for planner in planners:
        began = time.process_time()
        plan = planner()
        planning_s += time.process_time() - began
        works.append(work_of(plan, rates))
    return Workload(name, Work.joined(works), planning_s)


def deaths(makespan_s: float, nodes: int, seed: int = 1) -> dict[int, float]:
    """Return times of death of a share `DYING` of the nodes."""
    rng = np.random.default_rng(seed)
    dying = rng.choice(nodes, round(DYING * nodes), replace=False)
    return {int(node): float(rng.uniform(0, makespan_s)) for node in dying}


def rows_for(load: Workload, overheads: Overheads, folder: Path, nodes: int = NODES) -> list[Row]:
    """Play a workload without deaths, and with deaths with and without checkpoints; return its rows."""
    work, cluster = load.work, Cluster(nodes, CPUS)
    with tempfile.TemporaryDirectory(dir=folder) as run, contextlib.closing(EventLog(Path(run) / "events")) as log:
        calm = play(work, cluster, overheads, time_limit_s=NO_LIMIT_S, listeners=[log])
    stormy = replace(cluster, deaths=deaths(calm.makespan_s, nodes))
    with_checkpoints, without_checkpoints = (
        play(work, stormy, overheads, checkpoint_s=seconds, time_limit_s=NO_LIMIT_S)
        for seconds in (CHECKPOINT_S, math.inf)
    )
    by_default = play(work, cluster, overheads)
    for played in (calm, with_checkpoints, without_checkpoints):
        if played.failed:
            raise ValueError(f"{load.name}: {len(played.failed)} units failed: {next(iter(played.failed.values()))}")
    training = [unit for unit in work.units if unit.resources.gpus]
    ideal_s = work.gpu_seconds / nodes
    columns = {
        "units (with a GPU)": f"{len(work.units):,} ({len(training):,})",
        "GPU hours": f"{work.gpu_seconds / HOUR_S:,.1f}",
        "ideal, hours": f"{ideal_s / HOUR_S:,.2f}",
        "longest chain, hours": f"{work.longest_chain_s / HOUR_S:,.2f}",
        "no order is quicker than, hours": f"{work.shortest_s(nodes) / HOUR_S:,.2f}",
        "makespan, hours": f"{calm.makespan_s / HOUR_S:,.2f}",
        "GPUs busy": f"{100 * share_busy(calm, nodes):.1f} %",
        "GPUs busy in the quickest order, at most": f"{100 * ideal_s / work.shortest_s(nodes):.1f} %",
        "GPUs idle half of the time": f"{calm.idle_gpus} of {nodes}",
        "reason": reason(work, calm, nodes),
        "driver, planning, processor s": f"{load.planning_s:.1f}",
        "driver, running, processor s": f"{calm.driver_s:.1f}",
        "object store, put, GB": f"{calm.put_bytes / GB:.2f}",
        "object store, fetched, GB": f"{calm.fetched_bytes / GB:.1f}",
        "results, GB": f"{calm.result_bytes / GB:.3f}",
        "one node in ten dies: units run again": f"{with_checkpoints.reruns}",
        "one node in ten dies: GPU hours lost": f"{with_checkpoints.lost_gpu_s / HOUR_S:.2f}",
        "one node in ten dies: makespan": _longer(with_checkpoints, calm),
        "the same without checkpoints: GPU hours lost": f"{without_checkpoints.lost_gpu_s / HOUR_S:.2f}",
        "the same without checkpoints: makespan": _longer(without_checkpoints, calm),
        "units ended by the derived time limit": f"{sum('TimeLimit' in why for why in by_default.failed.values())}",
    }
    return [Row(setting({"workload": load.name}), what, value) for what, value in columns.items()]


def _longer(played: Played, calm: Played) -> str:
    return f"+{100 * (played.makespan_s / calm.makespan_s - 1):.0f} %"


def share_busy(played: Played, nodes: int) -> float:
    """Return the share of GPU time in which a unit ran."""
    return played.busy_gpu_s / (nodes * played.makespan_s)


def reason(work: Work, played: Played, nodes: int) -> str:
    """Return why fewer than `BUSY` of the GPUs are busy, in words; "-" if enough are."""
    if share_busy(played, nodes) >= BUSY:
        return "-"
    if work.longest_chain_s > 0.75 * played.makespan_s:
        return f"the longest chain takes {work.longest_chain_s / played.makespan_s:.0%} of the makespan".replace(
            "%", " %"
        )
    if work.gpu_seconds / nodes < BUSY * work.shortest_s(nodes):
        return "units that wait for most of the others take long, in any order"
    training = [work.seconds[unit.key] for unit in work.units if unit.resources.gpus]
    share = 100 * max(training) / played.makespan_s
    return (
        f"{len(training):,} units on {nodes} GPUs, the longest {share:.0f} % of the makespan: the last ones run alone"
    )


def recorded_overheads() -> Overheads:
    """Return the driver's costs that `benchmarks.scaling` measured."""
    values = {
        row.settings()["measured"]: float(row.value.split()[0])
        for row in read_rows(DATA / "scaling-inputs.csv")
        if row.what == "value"
    }
    return Overheads(
        (values["driver, a round"] * 1e-6, values["driver, a round, for each worker"] * 1e-6),
        (values["driver, a parcel"] * 1e-6, 0.0),
        values["driver, a unit"] * 1e-6,
        values["worker, beside a unit"] * 1e-3,
    )


def input_rows(rates: Rates, overheads: Overheads) -> list[Row]:
    """Return the rows of what was measured where, and of what is assumed."""
    inputs = {
        "node": (f"{CPUS} CPUs, 1 GPU", "assumed"),
        "GPU, operations per second": (f"{rates.flops:.0e}", "assumed; 3 forward passes for each example and step"),
        "DP-SGD over an ordinary training": (
            f"{rates.single_gradients:.1f}",
            "measured on a CPU: stacks-against-jax, 20,000 rows",
        ),
        "spread of a unit's duration": (f"{SPREAD:g}", "assumed, deviation of the logarithm"),
        "a dead node is noticed after": (f"{DETECTED_S:g} s", "measured on a local cluster"),
        "a worker starts in": (f"{STARTED_S:g} s", "measured on a local cluster"),
        "driver, a parcel": (f"{1e3 * overheads.parcel[0]:.1f} ms", "measured: scaling-inputs"),
        "driver, a unit": (f"{1e6 * overheads.unit:.0f} µs", "measured: scaling-inputs"),
        "checkpoint": (f"{CHECKPOINT_S:g} s", "stated: the longest work that a training loses"),
    }
    inputs |= {
        f"unit {kind}": (f"{seconds:.2g} s", "measured in a small run, for one piece and row")
        for kind, seconds in sorted(rates.seconds.items())
        if kind.partition(":")[0] in ("count", "score_challenges", "choose_challenges")
    }
    return [
        Row(setting({"input": name}), what, cell)
        for name, (value, source) in inputs.items()
        for what, cell in (("value", value), ("from", source))
    ]


def main() -> None:
    """Plan, play, print, and write docs/data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of real data; made data with the same counts without it")
    parser.add_argument("--rows", action="store_true", help="writes docs/data/hundred-gpu-nodes*.csv")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rates, overheads = measured_rates(small_plans(folder), folder / "small"), recorded_overheads()
        data = options.data
        if data is None:
            data = folder / "data"
            make_data(data)
        rows: list[Row] = []
        for load in workloads(data, folder, rates):
            played = rows_for(load, overheads, folder)
            for row in played:
                print(f"{load.name}: {row.what}: {row.value}", flush=True)
            rows += played
    if options.rows:
        files = {"hundred-gpu-nodes.csv": rows, "hundred-gpu-nodes-inputs.csv": input_rows(rates, overheads)}
        for name, written in files.items():
            write(DATA / name, written)
            note_origin(measured_here(name, "python -m benchmarks.hundred_gpu_nodes --rows"))


def workloads(data: Path, folder: Path, rates: Rates) -> Iterator[Workload]:
    """Yield the three workloads, with variants that explain their shares."""
    yield workload("Table 1, one seed", rates, partial(image_plan, data, 0))
    yield workload(f"Table 1, {len(SEEDS)} seeds", rates, *(partial(image_plan, data, seed) for seed in SEEDS))
    yield workload("Table 2", rates, partial(bayesian_plan, data))
    yield workload("Table 2, stacks of 4", rates, partial(bayesian_plan, data, 4))
    yield workload("sweep of 200 configurations", rates, partial(sweep_plan, data, folder))


if __name__ == "__main__":
    main()
