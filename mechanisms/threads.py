"""Thread limits of the native libraries used by NumPy and scikit-learn."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, cast

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]


def limited_threads(threads: int) -> AbstractContextManager[object]:
    """Return a context manager that limits BLAS and OpenMP to `threads` threads."""
    # Finding the libraries takes as long as a small training, so repeat it only after further modules were imported.
    return cast(AbstractContextManager[object], _libraries(len(sys.modules)).limit(limits=threads))


@lru_cache(maxsize=1)
def _libraries(modules: int) -> Any:
    return ThreadpoolController()
