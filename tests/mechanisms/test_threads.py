"""No more threads than asked for, in libraries that were loaded before and since."""

from __future__ import annotations

import numpy as np
import sklearn.linear_model  # noqa: F401, loads BLAS and OpenMP
from threadpoolctl import ThreadpoolController, threadpool_info

from dpaudit.mechanisms import threads
from dpaudit.mechanisms.threads import limited_threads


def test_every_library_is_limited_and_put_back() -> None:
    before = [library["num_threads"] for library in threadpool_info()]
    with limited_threads(2):
        with limited_threads(1):
            assert {library["num_threads"] for library in threadpool_info()} == {1}
        assert max(library["num_threads"] for library in threadpool_info()) <= 2
    assert [library["num_threads"] for library in threadpool_info()] == before
    assert np.isfinite(np.ones((3, 3)) @ np.ones(3)).all()


def test_libraries_are_looked_up_again_where_modules_were_imported_since() -> None:
    threads._libraries.cache_clear()
    first, again = threads._libraries(100), threads._libraries(100)
    assert isinstance(first, ThreadpoolController)
    assert again is first
    assert threads._libraries(101) is not first
