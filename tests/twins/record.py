"""Write the record of the slow twins: `python -m tests.twins.record`, which takes a few minutes at most.

It runs the quick tests that call twins. A twin that has changed since its record, or that is called with new arguments,
computes its answer. Delete `tests/twins/recorded` first to recompute all answers.
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
    """Run the tests and return pytest's exit code. Write the record unless a test failed."""
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
