"""What comes from outside and what code raised itself, where both are a `KeyboardInterrupt`."""

from __future__ import annotations

import os
import signal

import pytest

from dpaudit.actors.audited.signals import raised_externally, signals_interrupt


def as_catboost(number: signal.Signals) -> None:
    try:
        os.kill(os.getpid(), number)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_library_that_raises_its_own_interrupt_after_a_signal_was_interrupted(number: signal.Signals) -> None:
    with signals_interrupt(), signals_interrupt((signal.SIGINT,)):
        with pytest.raises(KeyboardInterrupt) as caught:
            as_catboost(number)
        assert raised_externally(caught.value)


def test_an_interrupt_that_code_raises_by_itself_is_its_own() -> None:
    with signals_interrupt(), signals_interrupt((signal.SIGINT,)):
        assert not raised_externally(KeyboardInterrupt())
