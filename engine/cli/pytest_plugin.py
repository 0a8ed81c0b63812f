"""pytest plugin with the fixture `dp_audit`, which checks privacy claims in tests.

    def test_sum(dp_audit):
        dp_audit.check(noisy_sum, claim=1.0, schema={"x": (0, 1)}, budget="30s")

All checks of a session share one probability of a false alarm. Each test has an equal share. In a test, each further
check has half the share of the check before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dpaudit.engine.answer.run_report import Report
    from dpaudit.engine.answer.verdict import Verdict

FIXTURE = "dp_audit"
ERROR = 0.001
"""Default probability that a session of honest mechanisms has a false alarm."""
_TESTS = pytest.StashKey[int]()
_SUMMARIES = pytest.StashKey[list[tuple[str, str]]]()
"""Test id and Markdown summary of each check, including those of pytest-xdist workers."""
_WORKER_OUTPUT = "dp_audit_summaries"  # key of the summaries in the output of a pytest-xdist worker


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options and the configuration value `dp_audit_error`."""
    group = parser.getgroup("dpaudit")
    group.addoption(
        "--dp-audit-error", type=float, metavar="P", help=f"probability of any false alarm in the session [{ERROR}]"
    )
    group.addoption("--dp-audit-seed", type=int, metavar="N", help="seed of all checks [0]")
    group.addoption(
        "--dp-audit-summary",
        type=Path,
        metavar="FILE",
        help="append a summary of all checks of the session in Markdown to this file",
    )
    parser.addini("dp_audit_error", "probability of any false alarm in a session", default=str(ERROR))


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SUMMARIES] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the summaries of a pytest-xdist worker to the main process."""
    handed_over = getattr(session.config, "workeroutput", None)
    if handed_over is not None:
        handed_over[_WORKER_OUTPUT] = [list(summary) for summary in session.config.stash[_SUMMARIES]]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Receive the summaries of a pytest-xdist worker."""
    summaries = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT, [])
    node.config.stash[_SUMMARIES].extend((test, summary) for test, summary in summaries)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the tests that share the error; every pytest-xdist worker collects them all."""
    session.config.stash[_TESTS] = sum(FIXTURE in getattr(item, "fixturenames", ()) for item in session.items)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the verdict of each check and the probability of a false alarm, and write the summary file."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    lines = [
        f"{report.nodeid}: {words}" for report in reports for name, words in report.user_properties if name == FIXTURE
    ]
    if lines:
        terminalreporter.section("privacy checks")
        for words in lines:
            terminalreporter.line(words)
        terminalreporter.line(f"A false alarm among these {len(lines)}: probability at most {error_of(config):g}.")
    file = config.getoption("--dp-audit-summary")
    if file is not None and not hasattr(config, "workerinput"):
        from dpaudit.errors import RunError

        try:
            _write_summary(file, config)
        except RunError as err:
            terminalreporter.line(f"dpaudit: {err}", red=True)


def _write_summary(file: Path, config: pytest.Config) -> None:
    """Append the Markdown of all checks to a file, in the order of the tests.

    Raises: RunError if the file cannot be written.
    """
    from dpaudit.engine.report.ci_files import markdown_text
    from dpaudit.plain_files import write_user_file

    unsorted: list[tuple[str, str]] = config.stash[_SUMMARIES]
    summaries = sorted(unsorted, key=lambda summary: summary[0])
    blocks = ["# Privacy checks", f"{len(summaries)} checks. A false alarm among them: probability at most "]
    blocks[-1] += f"{error_of(config):g}."
    blocks += [f"Test {markdown_text(test)}\n\n{summary.strip()}" for test, summary in summaries]
    write_user_file(file, ("\n\n".join(blocks) + "\n").encode(), append=True)


def error_of(config: pytest.Config) -> float:
    """Return the session's probability of a false alarm; raise pytest.UsageError if it is not in (0, 1)."""
    option = config.getoption("--dp-audit-error")
    try:
        error = float(config.getini("dp_audit_error") if option is None else option)
    except ValueError:
        error = 0.0
    if not 0 < error < 1:
        raise pytest.UsageError(f"--dp-audit-error must be in (0, 1), got {option or config.getini('dp_audit_error')}")
    return error


@pytest.fixture
def dp_audit(request: pytest.FixtureRequest, tmp_path: Path) -> DpAudit:
    """Checks privacy claims; a test fails if a claim is rejected, or could not have been rejected."""
    config, node = request.config, request.node

    def tell(words: str) -> None:
        # Not `record_property`: that fixture warns if JUnit is written as xunit2.
        node.user_properties.append((FIXTURE, words))

    def keep(summary: str) -> None:
        config.stash[_SUMMARIES].append((node.nodeid, summary))

    share = error_of(config) / max(1, config.stash[_TESTS])
    return DpAudit(share, config.getoption("--dp-audit-seed"), tmp_path, tell, keep)


class DpAudit:
    """Value of the fixture `dp_audit`."""

    def __init__(
        self,
        error: float,
        seed: int | None,
        folder: Path,
        tell: Callable[[str], None] = lambda words: None,
        keep: Callable[[str], None] = lambda summary: None,
    ) -> None:
        """Args:
        error: Probability of a false alarm that all checks of the test share.
        seed: Seed of the checks; None for the default.
        folder: Parent of the run folders.
        tell: Called with the verdict of each check in words.
        keep: Called with the summary of each check in Markdown.
        """
        self._error, self._seed, self._folder, self._tell, self._keep = error, seed, folder, tell, keep
        self._checks = 0

    def check(self, mechanism: Any, data: Any = None, *, accept: tuple[Verdict, ...] = (), **options: Any) -> Report:
        """Run `dpaudit.check` in this process, with a confidence that follows from the session's error.

        Args:
            accept: Verdicts that pass in addition to NO VIOLATION FOUND and NO CLAIM, such as `Verdict.INCONCLUSIVE`.
            options: Further arguments of `dpaudit.check`, such as `strict` and `effort`.
        Raises: VerdictError, an AssertionError, for any other verdict; TypeError for a confidence.
        """
        __tracebackhide__ = True
        if "confidence" in options:
            raise TypeError("the confidence of a check follows from the session's error. Give --dp-audit-error instead")
        from dpaudit.engine.report.ci_files import write_for_ci
        from dpaudit.engine.request.audit_spec import RunOptions
        from dpaudit.engine.run.checking import check
        from dpaudit.errors import FULL_TRACEBACK_VARIABLE, AuditError, drop_own_frames
        from dpaudit.field_checks import checked_arguments

        self._checks += 1
        defaults: dict[str, Any] = {
            "run": RunOptions(runner="in-process", figures=False),
            "output": self._folder / f"dp-audit-{self._checks}",
            "quiet": True,
            "seed": self._seed,
        }
        try:
            report = checked_arguments(check)(
                mechanism, data, confidence=1 - self._error / 2**self._checks, **(defaults | options)
            )
            assert report.joint is not None
            self._tell(report.joint.answer.text())
            summary = self._folder / f"dp-audit-{self._checks}.md"
            write_for_ci(report, "", summary=summary)
            self._keep(summary.read_text(encoding="utf-8"))
            report.raise_for_verdict(*accept)
        except AuditError as err:
            if os.environ.get(FULL_TRACEBACK_VARIABLE) != "1":
                drop_own_frames(err)
            raise
        return report
