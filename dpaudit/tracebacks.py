"""Tracebacks of refusals: without the frames of dpaudit, which say nothing about the caller's mistake."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from dpaudit.errors import AuditError

VARIABLE = "DPAUDIT_TRACEBACK"
"""Environment variable; 1 shows tracebacks in full."""

P = ParamSpec("P")
T = TypeVar("T")


def short_tracebacks(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` with short tracebacks: an `AuditError` leaves it without the frames of dpaudit.

    Type, attributes and cause of the error stay. Other exceptions, and all exceptions if the environment variable
    DPAUDIT_TRACEBACK is 1, keep every frame.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # for pytest
        try:
            return function(*args, **kwargs)
        except AuditError as err:
            if os.environ.get(VARIABLE) != "1":
                drop_own_frames(err)
            raise

    return call


def drop_own_frames(error: BaseException) -> None:
    """Leave the frames of other code alone in the traceback of an error and of its causes."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        link.__traceback__ = _of_others(link.__traceback__)
        link = link.__cause__ or link.__context__


def _of_others(trace: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback that are not of dpaudit."""
    frames = []
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] != "dpaudit":
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for frame in reversed(frames):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept
