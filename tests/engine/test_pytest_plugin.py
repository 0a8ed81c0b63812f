"""The pytest plugin: verdicts of tests, shared error, summaries."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpaudit.engine.cli.pytest_plugin import (
    _SUMMARIES,
    DpAudit,
    _write_summary,
    pytest_sessionfinish,
    pytest_testnodedown,
)
from dpaudit.errors import VerdictError

pytest_plugins = ["pytester"]
OWN_FILES = ("pytest_plugin.py", "checking.py", "run_report.py", "errors.py")
TESTS = """
    import pytest
    from dpaudit import Verdict

    SCHEMA = {"x": (0, 1)}

    def noisy(scale):
        def count(rows, rng):
            return len(rows) + int(rng.geometric(scale) - rng.geometric(scale))
        return count

    def test_honest(dp_audit):
        report = dp_audit.check(noisy(0.632), claim=1.0, schema=SCHEMA, budget="3s")
        assert report.confidence == pytest.approx(1 - 0.01 / 2 / 2)

    def test_too_little_noise(dp_audit):
        dp_audit.check(noisy(0.95), claim=1.0, schema=SCHEMA, budget="3s")

    def test_another_thing():
        pass
"""


@pytest.mark.filterwarnings("ignore")
def test_a_session_prints_verdicts_and_its_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    (pytester.path / "summary.md").write_text("before\n")
    options = ["--dp-audit-error", "0.01", "--dp-audit-summary", "summary.md"]
    junit = ["-W", "error::pytest.PytestWarning", "--junitxml", "junit.xml", "-o", "junit_family=xunit2"]
    result = pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:xdist", *options, *junit)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*VerdictError: VIOLATION  *",
            "*privacy checks*",
            "test_*.py::test_honest: NO VIOLATION FOUND  *",
            "  sensitivity *would detect noise scaled down *",
            "test_*.py::test_too_little_noise: VIOLATION  *",
            "  lower bound *epsilon >= *",
            "A false alarm among these 2: probability at most 0.01.",
        ]
    )
    assert not [name for name in OWN_FILES if name in result.stdout.str()]
    text = (pytester.path / "summary.md").read_text()
    assert text.startswith("before\n# Privacy checks\n\n2 checks. A false alarm among them: probability at most 0.01.")
    assert text.count("## Privacy audit: ") == text.count("Test test") == 2
    assert "**NO VIOLATION FOUND**" in text
    assert "**VIOLATION**" in text
    assert 'name="dp_audit"' in (pytester.path / "junit.xml").read_text()


def test_a_refused_check_shows_no_frame_of_dpaudit(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_refused(dp_audit):\n    dp_audit.check(lambda rows, rng: 1, claim=1.0)\n")
    result = pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:xdist")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*SpecError: a function on rows needs a schema*"])
    assert not [name for name in OWN_FILES if name in result.stdout.str()]


def test_xdist_workers_send_their_summaries(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """pytest-xdist calls the hooks in a worker at the end of its session, then in the main process."""
    pytester.makepyfile("def test_nothing():\n    pass\n")
    config = pytester.parseconfigure("--dp-audit-summary", str(tmp_path / "summary.md"))
    config.stash[_SUMMARIES].append(("b", "## second"))
    worker = SimpleNamespace(config=config)
    config.workeroutput = {}  # type: ignore[attr-defined]
    pytest_sessionfinish(worker)  # type: ignore[arg-type]
    other = pytester.parseconfigure("--dp-audit-summary", str(tmp_path / "summary.md"))
    other.stash[_SUMMARIES].append(("a", "## first"))
    pytest_testnodedown(SimpleNamespace(config=other, workeroutput=config.workeroutput), None)  # type: ignore[attr-defined]
    _write_summary(tmp_path / "summary.md", other)
    text = (tmp_path / "summary.md").read_text()
    assert text.index("## first") < text.index("## second")
    assert "2 checks. A false alarm among them: probability at most 0.001." in text


def test_several_checks_of_a_test_share_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = []

    def refusing_check(*arguments: object, confidence: float, **more: object) -> object:
        errors.append(1 - confidence)
        raise VerdictError("not played")

    checking = import_module("dpaudit.engine.run.checking")  # not imported above, because pytester unloads modules
    monkeypatch.setattr(checking, "check", refusing_check)
    audited = DpAudit(0.001, 0, tmp_path)
    for _ in range(20):
        with pytest.raises(VerdictError):
            audited.check(None)
    assert errors[:3] == pytest.approx([0.0005, 0.00025, 0.000125])
    assert sum(errors) <= 0.001


def test_a_check_accepts_no_confidence(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="--dp-audit-error"):
        DpAudit(0.001, 0, tmp_path).check(None, confidence=0.9)


@pytest.mark.parametrize("value", ["0", "1", "-3", "2"])
def test_an_error_outside_0_1_is_refused(value: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-p", "no:xdist", f"--dp-audit-error={value}", "-k", "honest")
    assert "must be in (0, 1)" in result.stdout.str() + result.stderr.str()
