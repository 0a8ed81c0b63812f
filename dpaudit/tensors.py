"""Arrays of NumPy from tensors and arrays of other libraries."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NARROW = ("bfloat16", "float8", "float6", "float4")
"""First letters of the types of floats, each with an exact float32, that NumPy lacks."""


def numpy_of(values: Any) -> NDArray[Any]:
    """Return the numbers of an array, a nested list or a tensor as an array of NumPy; masked values stay masked.

    A tensor may have a gradient and be on any device. bfloat16 and narrower floats become float32, which holds them
    exactly.

    Raises: the exceptions of NumPy and torch for values that are no array.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        if str(values.dtype).removeprefix("torch.").startswith(_NARROW):
            values = values.float()
    array = values if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
    is_narrow = array.dtype.kind == "V" and array.dtype.name.startswith(_NARROW)
    return array.astype(np.float32) if is_narrow else array
