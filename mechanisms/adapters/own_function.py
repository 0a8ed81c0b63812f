"""A function on rows, by the user or a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dpaudit.claims import Claim
from dpaudit.locations import has_location
from dpaudit.mechanisms.adapters.code_on_rows import CodeOnRows
from dpaudit.mechanisms.adapters.user_code import code_of
from dpaudit.mechanisms.queries.outcome import CallOutcome
from dpaudit.mechanisms.queries.row_function import CallLimits
from dpaudit.registry import register


@register("mechanism", "function", source="one's own code, or a library's")
@dataclass(frozen=True)
class OwnFunction(CodeOnRows):
    """A function `f(rows, rng, **settings)` on a table of rows, such as a query, a statistic or a model.

    It may return a number, an array, a mapping, a data frame or an object with a `summary`, or raise an exception. The
    audit examines the numbers, the form of the result and how the call ended. `rng` is a numpy.random.Generator; the
    global generators of Python and NumPy are seeded as well.

    Attributes:
        function: The function, a `functools.partial` with keywords, or a callable object; or its import path
            "module:function".
        claimed: The claim about neighbouring tables.
    """

    function: Any
    claimed: Claim | None = None

    made_by = "dpaudit.check(function, schema=...)"
    role = "function"

    def _checked(self, source: Any) -> Any:
        if callable(source) and not has_location(source):  # an object
            source = type(source).__call__.__get__(source)
        return code_of(source, field="function", arguments=("rows", "rng"), parameters=self.settings)

    def outcomes(
        self, rows: pa.Table, seeds: Sequence[int], settings: Mapping[str, Any], limits: CallLimits
    ) -> Sequence[CallOutcome]:
        return self.calls(rows, seeds, settings, limits)
