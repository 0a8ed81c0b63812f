"""Changes of the process by a unit are noticed and undone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import warnings

import pytest

from dpaudit.actors.audited.around import ProcessGuard, _guarded_state


def test_consecutive_attempts_are_separate(capfd: pytest.CaptureFixture[str]) -> None:
    """Output and changes belong to one attempt and are undone before the next."""
    dumps, guards = json.dumps, [ProcessGuard() for _ in range(6)]
    with ProcessGuard.consecutive():
        for number, guard in enumerate(guards):
            with guard.guard():
                assert json.dumps is dumps
                assert "LEFT" not in os.environ
                if number == 1:
                    json.dumps = repr  # type: ignore[assignment]
                if number == 2:
                    os.environ["LEFT"] = "1"
                print(number)
                sys.stdout.flush()
                if number == 3:  # closes the descriptor that captures output, by identity
                    catching = os.fstat(1)
                    for name in os.listdir("/proc/self/fd"):
                        with contextlib.suppress(OSError):
                            if os.path.samestat(os.fstat(int(name)), catching):
                                os.close(int(name))
    assert [guard.remarks for guard in guards[:3]] == [
        (),
        ("functions of libraries (json.dumps)",),
        ("environment variables (LEFT)",),
    ]
    assert [guard.printed for number, guard in enumerate(guards) if number != 3] == [
        b"0\n",
        b"1\n",
        b"2\n",
        b"4\n",
        b"5\n",
    ]
    assert not guards[5].remarks
    print("afterwards")
    assert capfd.readouterr().out == "afterwards\n"


def test_a_replaced_environment_is_noticed_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    before, usual = dict(os.environ), os.environ
    for number in range(3):
        with ProcessGuard.consecutive(), _guarded_state() as remarks:
            os.environ["LEFT"] = "2"
            if number:
                del os.environ["KEPT"]
            if number > 1:
                os.environ = os.environ.copy()  # type: ignore[assignment]  # noqa: B003
        what = ("LEFT", "KEPT, LEFT", "all of them, KEPT, LEFT")[number]
        assert remarks == [f"environment variables ({what})"]
        assert os.environ is usual
        assert (dict(os.environ), os.getenv("KEPT")) == (before, "1")


def test_an_equal_function_counts_as_replaced() -> None:
    class Same:
        def __call__(self) -> None: ...

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    dumps = json.dumps
    with _guarded_state() as remarks:
        json.dumps = Same()  # type: ignore[assignment]
    assert remarks == ["functions of libraries (json.dumps)"]
    assert json.dumps is dumps


def test_files_that_another_attempt_closes_are_noticed() -> None:
    """Several closed files are noticed; a single one may have been garbage-collected."""
    opened: list[int] = []
    all_remarks = []
    with ProcessGuard.consecutive():
        for number in range(6):
            with _guarded_state() as remarks:
                if number == 1:
                    opened += [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
                if number in (2, 3):
                    os.close(opened.pop())
                if number == 4:
                    for file in opened:
                        os.close(file)
            all_remarks.append([what.partition(" (")[0] for what in remarks])
    assert all_remarks == [[], [], [], [], ["open files it closed"], []]


def test_only_different_warning_filters_count_as_a_change() -> None:
    with warnings.catch_warnings():
        first = ("default", None, DeprecationWarning, "__main__", 0)
        warnings.filters.insert(0, first)  # type: ignore[attr-defined]
        with _guarded_state() as remarks:
            warnings.filters[0] = (*first[:3], re.compile(first[3]), 0)  # type: ignore[index]
        assert not remarks
        with _guarded_state() as remarks:
            warnings.simplefilter("ignore", FutureWarning)
        assert remarks == ["warnings filters"]
        assert warnings.filters[0][2] is DeprecationWarning
