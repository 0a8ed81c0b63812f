"""Writes the record of the slow twins: `python -m tests.twins.record`, at most some minutes.

The tests that call twins are run as by day; a twin that has changed since its record, or that is asked something new,
computes its answer. Delete `tests/twins/recorded` first to have all of them computed.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests import nightly
from tests.twins import answers

TESTS = Path(__file__).parents[1]


def asking_files() -> list[str]:
    """Return the test files that import a twin."""
    return [
        str(path)
        for path in sorted(TESTS.rglob("test_*.py"))
        if re.search(r"^(from|import) tests\.twins\b.*_twin", path.read_text(), re.MULTILINE)
    ]


def main() -> int:
    """Run the tests and write the record; where a test fails, leave the record as it is. Return pytest's exit code."""
    os.environ.pop(nightly.SWITCH, None)
    with answers.noting() as noted:
        code = pytest.main(["-q", "-p", "no:cacheprovider", *asking_files()])
    if code:
        print("A test failed: the record is left as it was.", file=sys.stderr)
        return int(code)
    answers.write(noted, answers.FOLDER)
    print(f"{sum(map(len, noted.values()))} answers of {len(noted)} modules of twins are recorded.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
