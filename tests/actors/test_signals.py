"""Interrupts by a signal are distinguished from interrupts that code raises."""

from __future__ import annotations

import os
import signal

import pytest

from dpaudit.actors.audited.signals import raised_externally, signals_interrupt


def interrupt_like_catboost(number: signal.Signals) -> None:
    try:
        os.kill(os.getpid(), number)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_raised_by_a_library_after_a_signal_is_external(number: signal.Signals) -> None:
    with signals_interrupt(), signals_interrupt((signal.SIGINT,)):
        with pytest.raises(KeyboardInterrupt) as caught:
            interrupt_like_catboost(number)
        assert raised_externally(caught.value)


def test_an_interrupt_raised_by_code_is_not_external() -> None:
    with signals_interrupt(), signals_interrupt((signal.SIGINT,)):
        assert not raised_externally(KeyboardInterrupt())
