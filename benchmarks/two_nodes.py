"""A real `ray start --head` and a second node on this machine: submit, status, logs, a node killed, stop, submit again.

    python -m benchmarks.two_nodes

Prints the output and exit code of each command, and exits with code 1 at an unexpected result. The nodes have one CPU
each and separate ports; the program kills only their processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos import content
from benchmarks.nodes import processes
from tests.cluster.head import Head, another_node, head_node

WAITED_S = 180.0
SPEC = """
name: two nodes
seed: 3
data: {name: gaussian-mixture, rows: 20000}
split: {target: 0.5, reference: 0.4, test: 0.1}
mechanism: {name: lp-1st, epsilon: 1.0, model: {name: catboost, iterations: 200}}
game: {name: label-inference, replays: 4, trainings: 40}
run: {runner: RUNNER, figures: false, repeats: 0}
"""


@dataclass(frozen=True)
class Finished:
    """A finished command.

    Attributes:
        code: Exit code.
        text: Output.
    """

    code: int
    text: str


def dpaudit(head: Head, folder: Path, *words: str) -> Finished:
    """Run a dpaudit command in a separate process outside the cluster."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(head.token)}
    run = [sys.executable, "-m", "dpaudit", *words]
    process = subprocess.run(
        run, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(
        f"$ dpaudit {' '.join(words)}\n{process.stdout.rstrip()[-1500:]}\n[exit code {process.returncode}]\n",
        flush=True,
    )
    return Finished(process.returncode, process.stdout)


def main() -> None:
    """Run all steps; exit with code 1 at the first unexpected result."""
    with tempfile.TemporaryDirectory(prefix="two-") as place:
        folder, shared = Path(place), Path(place) / "shared"
        shared.mkdir()
        (folder / "spec.yaml").write_text(SPEC.replace("RUNNER", "ray"))
        (folder / "alone.yaml").write_text(SPEC.replace("RUNNER", "in-process"))
        with head_node(folder, jobs=True, cpus=1) as head:
            address = ("--address", head.dashboard)
            alone = dpaudit(head, folder, "run", "alone.yaml", "-o", "alone", "--quiet")
            assert alone.code == 0
            output = shared / "run"
            with another_node(head) as second:
                submitted = dpaudit(head, folder, "submit", "spec.yaml", "-o", str(output), *address)
                job = submitted.text.split()[0]
                assert submitted.code == 0
                _until(lambda: _finished(output) >= 3)
                assert "units finished" in dpaudit(head, folder, "status", str(output)).text
                assert "RUNNING" in dpaudit(head, folder, "status", job, *address).text
                assert dpaudit(head, folder, "logs", job, *address).code == 0
                victims = processes(f"RAY_TMPDIR={second}")
                print(f"killing the second node: {len(victims)} processes, after {_finished(output)} units\n")
                for pid in victims:
                    os.kill(pid, signal.SIGKILL)
                before = _finished(output)
                _until(lambda: _finished(output) >= before + 3)
                print(f"{_finished(output)} units are finished, with the head alone\n")
                stopped = dpaudit(head, folder, "stop", job, *address)
                assert "STOPPED" in stopped.text
            finished_units = _finished(output)
            with another_node(head):
                again = dpaudit(head, folder, "submit", "spec.yaml", "-o", str(output), *address)
                name = again.text.split()[0]
                assert (again.code, name) == (0, f"{job}-2")
                assert dpaudit(head, folder, "logs", "-f", name, *address).code == 0
                assert "SUCCEEDED" in dpaudit(head, folder, "status", name, *address).text
                last = dpaudit(head, folder, "status", str(output))
                assert "finished" in last.text
                assert dpaudit(head, folder, "submit", "spec.yaml", "-o", str(output), *address).code == 0
            assert content(output) == content(folder / "alone"), "other bytes"
            print(f"{finished_units} units were kept from the stopped job; scores and results are those of one process")


def _finished(output: Path) -> int:
    return len(list((output / "units").glob("*.parquet")))


def _until(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + WAITED_S
    while not reached():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.2)


if __name__ == "__main__":
    main()
