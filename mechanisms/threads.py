"""How many threads the libraries below NumPy and scikit-learn may start."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, cast

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]


def limited_threads(threads: int) -> AbstractContextManager[object]:
    """No more threads in BLAS and OpenMP for the length of a `with` block."""
    # To look them up takes as long as a small training: again where modules were imported since, which load libraries.
    return cast(AbstractContextManager[object], _libraries(len(sys.modules)).limit(limits=threads))


@lru_cache(maxsize=1)
def _libraries(modules: int) -> Any:
    return ThreadpoolController()
