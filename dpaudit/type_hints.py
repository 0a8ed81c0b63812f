"""Type hints of dataclasses and functions, with aliases replaced by the types that they stand for.

From version 2.5 on, NumPy defines `NDArray` by a `type` statement. `typing.get_origin(NDArray[np.float64])` is then the
alias, not `np.ndarray`.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Any


@functools.cache
def type_hints(owner: Any) -> dict[str, Any]:
    """Return the type hints of a class or function by name, without aliases."""
    return {name: without_aliases(hint) for name, hint in typing.get_type_hints(owner).items()}


def without_aliases(hint: Any) -> Any:
    """Return the type hint `hint` with each alias of a `type` statement replaced by its type, at any depth."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    alias = hint if origin is None else origin
    if not isinstance(alias, type) and hasattr(alias, "__value__"):
        return without_aliases(alias.__value__[arguments] if arguments else alias.__value__)
    replaced = tuple(map(without_aliases, arguments))
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return hint
    return typing.Union[replaced] if origin is types.UnionType else origin[replaced]  # noqa: UP007  # of any length
