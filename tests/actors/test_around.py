"""Changes that a unit makes to its process: which are noticed and undone, and which do not count."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import warnings

import pytest

from dpaudit.actors.audited.around import ProcessGuard, _guarded_state


def test_changes_are_attributed_to_their_attempt_and_undone(capfd: pytest.CaptureFixture[str]) -> None:
    """Output and changes are attributed to their attempt and undone, so each attempt starts from the same state."""
    dumps, guards = json.dumps, [ProcessGuard() for _ in range(6)]
    with ProcessGuard.consecutive():
        for number, process_guard in enumerate(guards):
            with process_guard.guard():
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
    assert [process_guard.remarks for process_guard in guards[:3]] == [
        (),
        ("functions of libraries (json.dumps)",),
        ("environment variables (LEFT)",),
    ]
    assert [process_guard.printed for number, process_guard in enumerate(guards) if number != 3] == [
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
        names = ("LEFT", "KEPT, LEFT", "all of them, KEPT, LEFT")[number]
        assert remarks == [f"environment variables ({names})"]
        assert os.environ is usual
        assert (dict(os.environ), os.getenv("KEPT")) == (before, "1")


def test_a_function_replaced_by_an_equal_object_is_noticed() -> None:
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


def test_files_closed_by_a_later_attempt_are_noticed() -> None:
    """Several files closed by one attempt are noticed, whichever attempt opened them. A single one may be garbage."""
    opened: list[int] = []
    remarks_by_attempt = []
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
            remarks_by_attempt.append([remark.partition(" (")[0] for remark in remarks])
    assert remarks_by_attempt == [[], [], [], [], ["open files it closed"], []]


def test_only_new_warning_filters_are_noticed() -> None:
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
