"""What is noticed of a process that a unit changed, and what is no change."""

from __future__ import annotations

import re
import warnings

from dpaudit.actors.audited.around import _watched


def test_filters_that_a_library_set_as_they_were_are_no_change_and_a_new_one_is() -> None:
    with warnings.catch_warnings():
        first = ("default", None, DeprecationWarning, "__main__", 0)
        warnings.filters.insert(0, first)  # type: ignore[attr-defined]
        with _watched() as found:
            warnings.filters[0] = (*first[:3], re.compile(first[3]), 0)  # type: ignore[index]
        assert not found
        with _watched() as found:
            warnings.simplefilter("ignore", FutureWarning)
        assert found == ["warnings filters"]
        assert warnings.filters[0][2] is DeprecationWarning
