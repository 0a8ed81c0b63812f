"""The whole test run: `make test` by day, `make nightly` by night.

    python -m tests.suite [--jobs N] [PYTEST ARGUMENTS]
    python -m tests.suite --long [FILE]       # the tests that take long, as the last run recorded them

The linter comes first. The type checker then runs next to pytest, so that both cores are busy. On a new clone one
process runs `KERNEL_TESTS` first, which compile the kernels (Numba), so that each is compiled once. Afterwards the run
is read: a day test that took more than `LONGEST_S` seconds of processor is named, and fails the run from `TOLERANCE`
times as many on, unless it is in `LONG` or other programs kept the machine busy.

By day the tests of a wing run where the wing, its tests or a module that the wing imports directly was changed
(`nightly.changed_since_base`), or if git cannot tell. By night, and with DPAUDIT_ALL_WINGS=yes, all run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from tests import nightly
from tests.import_graph import imports, module_of, read_sources

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "build" / "test-times.json"
RECORD_VARIABLE = "DPAUDIT_TEST_TIMES"
"""Names the file that `tests/conftest.py` writes the seconds of each test to."""
LONGEST_S = 5.0
TOLERANCE = 3.0
"""Maximum slowdown of equal work by cold caches and shared cores: 2 was exceeded once by 0.02 s, on a quiet machine."""
SHOWN = 40
BUSY_CORES = 0.3
"""Cores in use by other programs from which processor seconds are not meaningful."""
WINGS = ("language_models", "synthetic_tables")
"""Packages of one domain each, whose tests are in folders of `tests` of the same names."""
ALL_WINGS = "DPAUDIT_ALL_WINGS"
OF_ALL_WINGS = ("pyproject.toml", "requirements/", "benchmarks/")
"""Beginnings of paths whose change makes the tests of all wings run; so do the helpers of all tests."""
KERNELS = ("engine", "estimators", "mechanisms", "synthetic_tables")
"""Floors with functions that Numba compiles and caches."""
KERNEL_TESTS = (
    "tests/engine/test_two_world.py::test_stacks_of_another_size_give_the_same_scores",
    "tests/engine/test_two_world.py::test_shadow_models_and_trials_are_trained_once_for_all_attacks",
    "tests/engine/test_two_world.py::test_planted_bug_of_dp_sgd_is_detected_by_its_steps",
    "tests/mechanisms/test_torch_models.py::test_mlp_learns_digits",
    "tests/engine/test_crafted_queries.py::test_one_record_decides_an_answer",
    "tests/engine/test_sequential.py::test_a_leak_stops_the_audit_and_saves_the_remaining_units",
    "tests/papers/test_attacks_compared.py::test_every_attack_sees_a_learner_that_recalls_its_labels",
    "tests/engine/test_ceiling.py::test_publisher_of_labels_does_not_pass_if_features_determine_the_labels",
    "tests/estimators/test_advantage.py::test_bags_too_improbable_for_floats_are_exact",
    "tests/engine/test_where_it_leaks.py::test_by_what_comes_back_alone",
    "tests/engine/test_poisonings.py::test_corner_record_is_alone_in_its_leaf_unlike_the_farthest_row",
    "tests/engine/test_ci_files.py::test_a_violation_fails_in_junit",
    "tests/estimators/test_confusion.py::test_interval_ends_are_the_posteriors_quantiles",
    "tests/engine/test_divided.py::test_bounds_in_parts_have_the_same_digits",
    "tests/estimators/test_guess_band.py::test_crossing_probability_skips_guesses_between_looks",
    "tests/estimators/test_guess_band.py::test_long_walks_use_transforms",
    "tests/mechanisms/test_compiled_mlp.py::test_products_are_numpys",
    "tests/mechanisms/test_private_learners.py::test_records_of_a_leaf_are_those_within_all_its_limits",
    "tests/engine/test_power.py::test_planning_tallies_few_rows",
)
"""Quick tests that together compile every kernel."""
LONG: Mapping[str, str] = {
    "tests/actors/test_schedule.py::test_two_workers_run_all_units_despite_losses_and_failures[ray]": (
        "starts the Ray session that all tests share"
    ),
    "tests/actors/test_parcels.py::test_processes_give_the_same_bytes": "starts child processes",
    "tests/mechanisms/test_gpu_script.py::test_two_workers_finish_at_the_same_time": "two child processes train",
    "tests/test_blocks.py::test_the_functions_of_the_guide_are_refuted": "three checks of functions, in full",
    "tests/engine/test_leaky_predictors.py::test_honest_twins_are_rejected_as_seldom_as_stated": (
        "seven honest predictors, each with a search"
    ),
    "tests/engine/test_dp_sgd_steps.py::test_planted_defects_are_refuted_in_one_training_and_the_honest_one_is_not": (
        "four loops of DP-SGD, each to its verdict"
    ),
    "tests/mechanisms/test_opacus.py::test_steps_without_noise_are_refuted": "two trainings with Opacus to a verdict",
    "tests/engine/test_state_between_calls.py::test_a_memoised_release_is_undecided_and_a_seeded_one_a_violation": (
        "two checks in full, each asked again in a fresh process"
    ),
    "tests/engine/test_check.py::test_an_unconfirmed_rejection_is_no_violation_and_the_other_tests_run": (
        "one check with two confirmatory runs"
    ),
    "tests/engine/test_crafted_crowd.py::test_batches_that_differ_from_the_accounting_are_rejected"
    "[tests.bank.planted_dp_sgd:FixedBatchesDpSgd-14-256-VIOLATION]": (
        "the one day test that plays opposing-gradients to its verdict"
    ),
    "tests/engine/test_pytest_plugin.py::test_a_session_prints_verdicts_and_its_error": (
        "a pytest session within the session"
    ),
    "tests/engine/test_row_function.py::test_time_counts_only_where_it_is_asked_for": (
        "the one day test of calls that are timed; their time has to show"
    ),
    "tests/engine/test_sensitivity.py::test_a_defect_of_the_bank_is_found[clip-after-mean]": (
        "a planted defect with the trials that its documentation states"
    ),
}
"""Day tests that may take longer, each with the reason."""
LOOPS, LOOPS_S = 5_000_000, 0.12
"""A loop of plain Python, and the processor seconds that it takes on the machine that `LONGEST_S` is meant for."""


def main(arguments: Sequence[str]) -> int:
    """Run everything; 0 if all passed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description=__doc__)
    parser.add_argument("--jobs", help="test processes; by default one for each core")
    parser.add_argument("--long", nargs="?", const=RECORD, type=Path, help="only list the tests that take long")
    options, others = parser.parse_known_args(arguments)
    if options.long is not None:
        print(*slowest(read_record(options.long)), sep="\n")
        return 0
    return run(options.jobs or str(os.cpu_count() or 1), others)


def run(jobs: str, pytest_arguments: Sequence[str]) -> int:
    """Run linter, type checker, tests and the check of their times; 0 if all passed, else 1."""
    if any(failed([*tool, "."]) for tool in (["ruff", "check"], ["ruff", "format", "--check"])):
        return 1
    RECORD.unlink(missing_ok=True)
    busy_before, began = machine_busy_s(), time.monotonic()
    types = subprocess.Popen(command(["mypy"]), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    first: Sequence[str] = KERNEL_TESTS if uncompiled_kernels() and not pytest_arguments else ()
    waiting = [] if pytest_arguments else waiting_wings(nightly.changed_since_base())
    print(*(f"tests/{wing} waits for the night: nothing of it was changed" for wing in waiting), sep="\n", flush=True)
    tests = bool(first) and failed(["pytest", "-q", *first])
    tests |= failed(
        [
            *("pytest", "-n", jobs, "--dist", "loadgroup", "--durations", str(SHOWN), *pytest_arguments),
            *(f"--deselect={test}" for test in first),
            *(f"--ignore=tests/{wing}" for wing in waiting),
        ],
        {RECORD_VARIABLE: str(RECORD)},
    )
    type_errors, _ = types.communicate()
    print(type_errors, end="", flush=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    others_s = machine_busy_s() - busy_before - used.ru_utime - used.ru_stime
    too_long = [] if nightly.on() else long_tests(read_record(RECORD), others_s / (time.monotonic() - began))
    print(*too_long, sep="\n", end="\n" if too_long else "", flush=True)
    return int(tests or types.returncode != 0 or bool(too_long))


def waiting_wings(changed: Set[str] | None) -> list[str]:
    """Return the wings whose tests wait for the night, given the changed files; None if git cannot tell them."""
    if nightly.on() or os.environ.get(ALL_WINGS) or changed is None:
        return []
    helpers = (path for path in changed if Path(path).parent == Path("tests") and not Path(path).match("test_*"))
    if any(helpers) or any(path.startswith(OF_ALL_WINGS) for path in changed):
        return []
    return [wing for wing in WINGS if not _is_concerned(wing, changed)]


def _is_concerned(wing: str, changed: Set[str]) -> bool:
    """Return True if a wing, its tests, or a module that the wing imports directly was changed."""
    if any(path.startswith((f"{wing}/", f"tests/{wing}/")) for path in changed):
        return True
    sources = read_sources(ROOT)
    wing_sources = {module: text for module, text in sources.items() if module.startswith(f"dpaudit.{wing}.")}
    imported = {module_of(entry.name, sources) for entry in imports(wing_sources)} - {None}
    return any(_module(path) in imported for path in changed)


def _module(path: str) -> str:
    """Return the module of a path from the root of the repository: "dpaudit.engine.exits" of "engine/exits.py"."""
    return "dpaudit." + path.removeprefix("dpaudit/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def command(tool: Sequence[str]) -> list[str]:
    """The command line of a tool of this environment."""
    return [sys.executable, "-m", *tool]


def failed(tool: Sequence[str], environment: Mapping[str, str] = {}) -> bool:
    """True if a tool of this environment, run to its end, did not succeed."""
    return subprocess.run(command(tool), cwd=ROOT, env={**os.environ, **environment}, check=False).returncode != 0


def uncompiled_kernels(root: Path = ROOT) -> list[Path]:
    """Source files with functions that Numba has not compiled since the file was changed, or never."""
    return [
        path
        for floor in KERNELS
        for path in sorted((root / floor).rglob("*.py"))
        if "cache=True" in path.read_text(encoding="utf-8")
        and not any(
            index.stat().st_mtime >= path.stat().st_mtime
            for index in (path.parent / "__pycache__").glob(f"{path.stem}.*.nbi")
        )
    ]


def read_record(path: Path) -> dict[str, dict[str, float]]:
    """Seconds of the clock and of the processor by test; empty if the run did not get so far."""
    return json.loads(path.read_text()) if path.is_file() else {}


def slowest(record: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Lines about the tests that took most processor time, and the sum over all tests."""
    by_time = sorted(record.items(), key=lambda test: -test[1]["processor_s"])
    total = sum(times["processor_s"] for times in record.values())
    return [
        f"{total:.0f} processor seconds in {len(record)} tests",
        *(f"{times['processor_s']:7.1f} s  {test}" for test, times in by_time[:SHOWN]),
    ]


def long_tests(record: Mapping[str, Mapping[str, float]], other_cores: float) -> list[str]:
    """Lines about day tests that took too long; empty if there are none or the machine was busy with other programs.

    Args:
        record: Seconds by test.
        other_cores: Cores that other programs used meanwhile, on average.
    """
    unlisted = {test: times["processor_s"] for test, times in record.items() if test not in LONG}
    long = {test: seconds for test, seconds in unlisted.items() if seconds > LONGEST_S}
    if not long:
        return []
    if other_cores > BUSY_CORES:
        print(f"times of tests not checked: other programs used {other_cores:.1f} cores")
        return []
    allowed_s = LONGEST_S * max(1.0, loop_s() / LOOPS_S)
    named = {test: seconds for test, seconds in long.items() if seconds > allowed_s}
    print(*(f"{test} took {seconds:.1f} s of processor" for test, seconds in named.items()), sep="\n")
    return [
        f"{test} must take less than {TOLERANCE * allowed_s:.0f} s of processor, it took {seconds:.1f}: "
        "make it quicker, mark it `nightly`, or list it in tests/suite.py with the reason"
        for test, seconds in named.items()
        if seconds > TOLERANCE * allowed_s
    ]


def loop_s() -> float:
    """Processor seconds of the loop that tells how slow this machine is."""
    began = time.process_time()
    for _ in range(LOOPS):
        pass
    return time.process_time() - began


def machine_busy_s() -> float:
    """Processor seconds that all programs of the machine have used since it started; 0 if it does not say."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq = (int(field) for field in fields[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
