"""Privacy as a test: the fixture `dp_audit` of the pytest plugin that comes with the package.

    def test_sum(dp_audit):
        dp_audit.check(noisy_sum, claim=1.0, schema={"x": (0, 1)}, budget="30s")

All checks of a session share one chance of a false alarm: each test has an equal part of it, and of several checks in a
test each has half of what the one before it had.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dpaudit.engine.reading.run_report import Report
    from dpaudit.engine.reading.verdict import Verdict

FIXTURE = "dp_audit"
ERROR = 0.001
"""The chance that a session of honest mechanisms has a false alarm, unless it is told another one."""
_TESTS = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--dp-audit-error` or `dp_audit_error` of the configuration file, and `--dp-audit-seed`."""
    group = parser.getgroup("dpaudit")
    group.addoption(
        "--dp-audit-error",
        type=float,
        metavar="P",
        help=f"chance that all checks of the session together raise a false alarm [{ERROR}]",
    )
    group.addoption("--dp-audit-seed", type=int, metavar="N", help="of all that is random in checks [0]")
    parser.addini("dp_audit_error", "chance of a false alarm in a session", default=str(ERROR))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Counts the tests that share the error; every worker of pytest-xdist collects them all."""
    session.config.stash[_TESTS] = sum(FIXTURE in getattr(item, "fixturenames", ()) for item in session.items)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What each test found, what noise it would have seen, and the chance of a false alarm among all."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    said = [
        f"{report.nodeid}: {words}" for report in reports for name, words in report.user_properties if name == FIXTURE
    ]
    if said:
        terminalreporter.section("privacy checks")
        for words in said:
            terminalreporter.line(words)
        terminalreporter.line(f"A false alarm among these {len(said)}: probability at most {error_of(config):g}.")


def error_of(config: pytest.Config) -> float:
    """The session's; pytest.UsageError for one that is no probability."""
    given = config.getoption("--dp-audit-error")
    try:
        error = float(config.getini("dp_audit_error") if given is None else given)
    except ValueError:
        error = 0.0
    if not 0 < error < 1:
        raise pytest.UsageError(
            f"--dp-audit-error must lie between 0 and 1, got {given or config.getini('dp_audit_error')}"
        )
    return error


@pytest.fixture
def dp_audit(request: pytest.FixtureRequest, tmp_path: Path, record_property: Callable[[str, object], None]) -> DpAudit:
    """Checks privacy claims; a test that is refuted, or that could not see anything, fails."""
    config = request.config
    share = error_of(config) / max(1, config.stash[_TESTS])
    return DpAudit(share, config.getoption("--dp-audit-seed"), tmp_path, record_property)


class DpAudit:
    """What the fixture gives a test."""

    def __init__(self, error: float, seed: int | None, folder: Path, tell: Callable[[str, object], None]) -> None:
        """`error` is what all checks of the test share."""
        self._error, self._seed, self._folder, self._tell, self._checks = error, seed, folder, tell, 0

    def check(self, mechanism: Any, data: Any = None, *, accept: tuple[Verdict, ...] = (), **asked: Any) -> Report:
        """`dpaudit.check`, in this process, with a confidence that follows from the session's error.

        Args:
            accept: Verdicts that pass beside NO VIOLATION FOUND and NO CLAIM, such as `Verdict.INCONCLUSIVE`.
            asked: What else `dpaudit.check` takes, except for `confidence`. With `evidence`, a file that is kept from
                one session to the next, the share of the error is that of all sessions together.
        Raises: VerdictError, an AssertionError, for any other verdict; TypeError for a confidence.
        """
        __tracebackhide__ = True
        if "confidence" in asked:
            raise TypeError("the confidence of a check follows from the session's error: give --dp-audit-error instead")
        from dpaudit.engine.run.checking import check
        from dpaudit.engine.spec.audit_spec import RunOptions

        self._checks += 1
        usual: dict[str, Any] = {
            "run": RunOptions(runner="in-process", figures=False),
            "output": self._folder / f"dp-audit-{self._checks}",
            "quiet": True,
            "seed": self._seed,
        }
        report = check(mechanism, data, confidence=1 - self._error / 2**self._checks, **(usual | asked))
        assert report.joint is not None
        self._tell(FIXTURE, report.joint.answer.text())
        report.raise_for_verdict(*accept)
        return report
