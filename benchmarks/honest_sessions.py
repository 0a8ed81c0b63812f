"""False alarms in sessions of privacy tests with honest mechanisms only.

    python -m benchmarks.honest_sessions OUTPUT.jsonl [sessions] [error] [first seed]

A session has three tests with the fixture `dp_audit`: a count, a histogram and randomised response. They share the
session's error probability as in the plugin. The program skips sessions that OUTPUT has.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpaudit import Claim
from dpaudit.engine.cli.pytest_plugin import DpAudit
from dpaudit.errors import VerdictError
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse

Rng = Any
STEP = 0.632121  # of two-sided geometric noise at epsilon = 1


def count(rows: Any, rng: Rng) -> int:
    """Return the number of rows with geometric noise, epsilon = 1."""
    return len(rows) + int(rng.geometric(STEP) - rng.geometric(STEP))


def histogram(rows: Any, rng: Rng) -> list[int]:
    """Return noisy counts of three public cities."""
    counts = rows["city"].value_counts()
    return [int(counts.get(city, 0)) + int(rng.geometric(STEP) - rng.geometric(STEP)) for city in ("a", "b", "c")]


TESTS: dict[str, Callable[[DpAudit], Any]] = {
    "count": lambda audit: audit.check(count, claim=1.0, schema={"x": (0, 1)}, budget="1s"),
    "histogram": lambda audit: audit.check(histogram, claim=1.0, schema={"city": ["a", "b", "c"]}, budget="1s"),
    "randomised response": lambda audit: audit.check(RandomizedResponse(1.0), claim=Claim(1.0), budget="1s"),
}


def session(number: int, error: float) -> dict[str, Any]:
    """Run a session and return the verdict of each test."""
    began, verdicts = time.monotonic(), {}
    for place, (name, test) in enumerate(TESTS.items()):
        with tempfile.TemporaryDirectory() as folder:
            audit = DpAudit(error / len(TESTS), len(TESTS) * number + place, Path(folder), lambda *_: None)
            try:
                test(audit)
                verdicts[name] = "passed"
            except VerdictError as err:
                verdicts[name] = str(err)
    return {"session": number, "error": error, "said": verdicts, "seconds": round(time.monotonic() - began, 1)}


def main(output: Path, sessions: int = 100, error: float = 0.05, first: int = 0) -> None:
    """Run the missing sessions, and count alarms."""
    lines = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    finished = {line["session"] for line in lines}
    for number in range(first, first + sessions):
        if number in finished:
            continue
        lines.append(session(number, error))
        with output.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
    alarms = sum(any(words.startswith("VIOLATION") for words in line["said"].values()) for line in lines)
    others = sum(any(words[:9] not in ("passed", "VIOLATION") for words in line["said"].values()) for line in lines)
    print("| sessions | error | with a false alarm | with another failure |\n" + "| --- " * 4 + "|")
    print(f"| {len(lines)} | {error:g} | {alarms} | {others} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]), *map(float, sys.argv[3:4]), *map(int, sys.argv[4:]))
