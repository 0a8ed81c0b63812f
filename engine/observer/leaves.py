"""Gradients as frameworks hold them: a vector, a matrix with a row for each example, tensors in a list or mapping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import InputError
from dpaudit.tensors import numpy_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def leaves(values: Any) -> list[Any]:
    """Return the arrays in a nested list or mapping in their order; an array itself is its only leaf.

    Raises: InputError for anything else.
    """
    if hasattr(values, "shape") and hasattr(values, "dtype"):
        return [values.to_local() if hasattr(values, "to_local") else values]  # of a tensor in shards, this one's
    if isinstance(values, Mapping):
        values = values.values()
    elif isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"gradients must be arrays, or a list or mapping of arrays, got {type(values).__name__}")
    return [leaf for value in values for leaf in leaves(value)]


def names_of(values: Any, path: str = "") -> list[str]:
    """Return the name of each leaf: its keys or numbers on the way, such as `hidden.weight` or `tensor 3`."""
    if hasattr(values, "shape") and hasattr(values, "dtype"):
        return [path or "the model"]
    is_mapping = isinstance(values, Mapping)
    items = values.items() if is_mapping else enumerate(values)
    return [
        name
        for key, value in items
        for name in names_of(value, f"{path}.{key}" if path else str(key) if is_mapping else f"tensor {key}")
    ]


def like(values: Any, replaced: Iterable[Any]) -> Any:
    """Return the nested list or mapping with its leaves replaced in their order."""
    rest = iter(replaced)
    if hasattr(values, "shape") and hasattr(values, "dtype"):
        return next(rest)
    if isinstance(values, Mapping):
        return {name: like(value, rest) for name, value in values.items()}
    parts = [like(value, rest) for value in values]
    return type(values)(*parts) if hasattr(values, "_fields") else type(values)(parts)


def shapes_of(values: Any) -> list[tuple[int, ...]]:
    """Return the shape of each leaf."""
    return [tuple(map(int, leaf.shape)) for leaf in leaves(values)]


def with_examples(leaf: Any, added: Floats) -> Any:
    """Return gradients of examples, shape (examples, ...), with further ones, shape (further examples, weights)."""
    shape = (len(added), *leaf.shape[1:])
    if hasattr(leaf, "index_select"):
        import torch

        return torch.cat([leaf, torch.from_numpy(added).reshape(shape).to(leaf)])
    return np.concatenate([leaf, added.reshape(shape).astype(np.dtype(leaf.dtype))])


class Places:
    """Some places among the concatenated leaves of gradients, found once, at which numbers are read and added.

    Args:
        sizes: Number of weights of each leaf.
        place: The places, in any shape, each at most once.
    """

    def __init__(self, sizes: Sequence[int], place: Ints) -> None:
        self._shape, flat = place.shape, place.ravel()
        order = np.argsort(flat)
        ends = np.cumsum(sizes)
        cuts = np.searchsorted(flat[order], np.concatenate([[0], ends]))
        self._parts = [
            (leaf, order[first:end], flat[order[first:end]] - int(ends[leaf] - sizes[leaf]))
            for leaf, (first, end) in enumerate(pairwise(cuts.tolist()))
            if end > first
        ]
        self._on_device: dict[tuple[int, str], Any] = {}

    def at(self, values: Any) -> Floats:
        """Return the numbers at the places, float64."""
        whole, numbers = leaves(values), np.empty(int(np.prod(self._shape)))
        for leaf, which, local in self._parts:
            flat = whole[leaf].reshape(-1)
            if hasattr(flat, "index_select"):
                flat = flat.detach().index_select(0, self._tensor(leaf, local, flat.device))
                numbers[which] = numpy_of(flat)
            else:
                numbers[which] = np.asarray(flat[local])
        return numbers.reshape(self._shape)

    def add(self, values: Any, numbers: Floats, *, in_place: bool) -> Any:
        """Return the gradients with numbers added at the places; `in_place` changes arrays and tensors themselves."""
        changed, flat_numbers = leaves(values), numbers.ravel()
        for leaf, which, local in self._parts:
            changed[leaf] = self._added(leaf, changed[leaf], local, flat_numbers[which], in_place)
        return like(values, changed)

    def _added(self, number: int, leaf: Any, local: Ints, added: Floats, in_place: bool) -> Any:
        if hasattr(leaf, "index_add_"):
            import torch

            with torch.no_grad():
                target = leaf if in_place else leaf.clone()
                flat = target.view(-1)
                flat.index_add_(0, self._tensor(number, local, flat.device), torch.from_numpy(added).to(flat))
            return target
        if isinstance(leaf, np.ndarray):
            target = leaf if in_place else leaf.copy()
            target.reshape(-1)[local] += added.astype(leaf.dtype)
            return target
        dense = np.zeros(int(np.prod(leaf.shape)))
        dense[local] = added
        return leaf + dense.reshape(leaf.shape).astype(np.dtype(leaf.dtype))

    def _tensor(self, leaf: int, local: Ints, device: Any) -> Any:
        """Return the places within a leaf as a tensor on its device, which is moved there once."""
        import torch

        if (leaf, str(device)) not in self._on_device:
            self._on_device[leaf, str(device)] = torch.from_numpy(local).to(device)
        return self._on_device[leaf, str(device)]
