"""A loop of cases fails if any case fails, with the names of all failed cases."""

from __future__ import annotations

import pytest

from tests.loops import Cases


def played(*numbers: object) -> None:
    with Cases() as cases:
        for number in numbers:
            with cases.case("number", number):
                assert number != 2, "two"
                with pytest.raises(ZeroDivisionError):
                    print(1 / number)  # type: ignore[operator]


def test_every_failed_case_is_named_with_its_place_and_the_others_run() -> None:
    played(0)
    with pytest.raises(AssertionError) as raised:
        played(0, 1, 2, "x", 2)
    message = str(raised.value)
    assert message.startswith("4 of 5 cases failed:\nnumber 1\n")
    assert "number 2\n" in message
    assert "number 2 (case 5)\n" in message
    assert "TypeError" in message
    assert message.count("test_loops.py:") == 4
    assert "number 0" not in message


def test_a_loop_without_a_case_and_an_error_outside_of_one_are_seen() -> None:
    with pytest.raises(AssertionError, match="no case ran"):
        played()
    with pytest.raises(KeyError), Cases():
        raise KeyError


def test_a_skip_and_an_interrupt_pass() -> None:
    for passes in (pytest.skip.Exception, KeyboardInterrupt):
        with pytest.raises(passes), Cases() as cases, cases.case("it"):
            raise passes
