"""Lines of each room: a ratchet. They only go down; where a room must grow, this file says so in the same commit."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SLACK = 40
"""Lines by which a room may be smaller than its limit before the limit must follow."""
LIMITS = {
    "actors": 4834,
    "benchmarks": 11531,
    "cluster": 526,
    "dpaudit": 3875,
    "engine": 198,
    "engine/answer": 4360,
    "engine/attacks": 1186,
    "engine/cli": 2331,
    "engine/data": 3909,
    "engine/estimate": 1440,
    "engine/figures": 596,
    "engine/games": 18483,
    "engine/observer": 1366,
    "engine/planning": 727,
    "engine/report": 868,
    "engine/request": 2737,
    "engine/run": 3222,
    "engine/sweep": 1077,
    "estimators": 11425,
    "examples": 1854,
    "language_models": 1,
    "language_models/attacks": 235,
    "language_models/canary_kinds": 209,
    "language_models/canary_texts": 1701,
    "language_models/data": 112,
    "language_models/front_door": 1297,
    "language_models/games": 661,
    "language_models/mechanisms": 3026,
    "mechanisms": 14660,
    "papers": 6888,
    "synthetic_tables": 1,
    "synthetic_tables/attacks": 461,
    "synthetic_tables/front_door": 1314,
    "synthetic_tables/games": 3080,
    "synthetic_tables/mechanisms": 1101,
    "tests": 79137,
    "tools": 1691,
}
"""Most lines of Python in each room."""


def room_of(path: str) -> str:
    """Return the room of a file: two folders of the engine and the wings, one of the others."""
    folder, *inner = path.split("/")
    return (
        f"{folder}/{inner[0]}" if folder in ("engine", "language_models", "synthetic_tables") and inner[1:] else folder
    )


def lines_by_room() -> Counter[str]:
    """Return the number of lines of the tracked Python files by room; links are left out."""
    counts: Counter[str] = Counter()
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    for path in tracked.stdout.split():
        if (ROOT / path).is_file() and not (ROOT / path).is_symlink():
            counts[room_of(path)] += len((ROOT / path).read_text(encoding="utf-8").splitlines())
    return counts


def wrong_limits(lines: Counter[str], limits: dict[str, int]) -> dict[str, str]:
    """Return what is wrong with the limit of each room."""
    wrong = {}
    for room in sorted(lines.keys() | limits.keys()):
        count, limit = lines[room], limits.get(room, 0)
        if count > limit:
            wrong[room] = f"{count} lines exceed {limit}: delete some, or raise it with the reason in the commit"
        elif count < limit - SLACK:
            wrong[room] = f"lower the limit {limit} to {count}"
    return wrong


def test_no_room_grows() -> None:
    assert wrong_limits(lines_by_room(), LIMITS) == {}


def test_a_room_that_grows_shrinks_or_is_new_is_found() -> None:
    limits = {"a": 100, "b": 200}
    assert wrong_limits(Counter(a=100, b=200), limits) == {}
    assert wrong_limits(Counter(a=101, b=200), limits).keys() == {"a"}
    assert wrong_limits(Counter(a=100, b=200 - SLACK - 1), limits).keys() == {"b"}
    assert wrong_limits(Counter(a=100, b=200, c=1), limits).keys() == {"c"}
    assert room_of("engine/games/x.py") == "engine/games"
    assert room_of("engine/exits.py") == "engine"
