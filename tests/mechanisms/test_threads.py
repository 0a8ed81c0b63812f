"""No more threads than asked for, in libraries that were loaded before and since."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import sklearn.linear_model  # noqa: F401, loads BLAS and OpenMP
from threadpoolctl import ThreadpoolController, threadpool_info

from dpaudit.mechanisms import compute
from dpaudit.mechanisms.compute import limited_threads


def most() -> int:
    return max(library["num_threads"] for library in threadpool_info())


def test_every_library_is_limited_and_put_back() -> None:
    with ThreadpoolController().limit(limits=2):
        before = [library["num_threads"] for library in threadpool_info()]
        if max(before) < 2:
            pytest.skip("one core")
        with limited_threads(1):
            assert most() == 1
        assert [library["num_threads"] for library in threadpool_info()] == before


def test_libraries_are_looked_up_again_only_where_modules_were_imported_since(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = compute._libraries.cache_info
    with limited_threads(1):
        first = looked_up().misses
    with limited_threads(1):
        assert looked_up().misses == first
    monkeypatch.setitem(sys.modules, "imported_since", ModuleType("imported_since"))
    with limited_threads(1):
        assert looked_up().misses == first + 1
