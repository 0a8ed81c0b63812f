"""Short tracebacks of `AuditError`: frames of dpaudit are dropped, because the mistake is in the caller's code."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from dpaudit.errors import AuditError

FULL_TRACEBACK_VARIABLE = "DPAUDIT_TRACEBACK"
"""Environment variable; 1 shows full tracebacks."""

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
            if os.environ.get(FULL_TRACEBACK_VARIABLE) != "1":
                drop_own_frames(err)
            raise

    return call


def drop_own_frames(error: BaseException) -> None:
    """Remove the frames of dpaudit from the tracebacks of `error` and its causes."""
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        trace = link.__traceback__
        frames = []
        while trace is not None:
            module = str(trace.tb_frame.f_globals.get("__name__", ""))
            # An exception that leaves one of dpaudit's context managers passes a frame of contextlib.
            if module.partition(".")[0] not in ("dpaudit", "contextlib"):
                frames.append(trace)
            trace = trace.tb_next
        chain: TracebackType | None = None
        for frame in reversed(frames):
            chain = TracebackType(chain, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        link.__traceback__ = chain
        link = link.__cause__ or link.__context__
