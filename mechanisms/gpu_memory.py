"""Memory of the GPU that this process uses: its limit, and the data that stay on the GPU between units.

A unit with a share of a GPU must not take the memory of the other units on it. Units on one worker mostly train on the
same shared examples, so these stay on the GPU and are copied once per process. On a CPU nothing is kept.
"""

from __future__ import annotations

import gc
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

NO_ROOM_FOR_A_MODEL = (
    "the GPU has too little memory for one model. Lower batch_size, give the unit a larger share of a GPU, or use a "
    "GPU with more memory."
)
RESIDENT_SHARE = 0.2  # share of a unit's GPU memory for data that stay there after a training

_held_shares: dict[str, float] = {}  # share of each GPU's memory to which this process is limited
_resident: OrderedDict[tuple[str, str], Tensor] = OrderedDict()  # data by digest and device, latest use last
_shared_features: ContextVar[Mapping[int, Examples] | None] = ContextVar("examples by id of features", default=None)


def hold_share(compute: Compute) -> None:
    """Limit this process to the unit's share of its GPU's memory; does nothing on a CPU or without torch."""
    device, share = compute.device, float(compute.device_share)
    if not _on_gpu(compute) or share == _held_shares.get(device, 1.0) or find_spec("torch") is None:
        return
    import torch

    if torch.cuda.is_available():
        release_resident()  # data kept under a larger share may exceed this one
        torch.cuda.set_per_process_memory_fraction(share, device)
        _held_shares[device] = share


def unit_bytes(compute: Compute) -> int:
    """Return the bytes of GPU memory that the unit may use."""
    import torch

    total: int = torch.cuda.get_device_properties(compute.device).total_memory
    return int(compute.device_share * total)


@contextmanager
def shared_examples(shared: Mapping[str, Any]) -> Iterator[None]:
    """Make the features of examples among a unit's shared inputs known to `digest_if_shared` in the block."""
    in_memory = (each for each in shared.values() if isinstance(each, Examples) and "features" in vars(each))
    examples = {id(each.features): each for each in in_memory}  # not those that stay in shards
    token = _shared_features.set(examples)
    try:
        yield
    finally:
        _shared_features.reset(token)


def in_unit() -> bool:
    """True in a process that runs a unit, while it runs."""
    return _shared_features.get() is not None


def digest_if_shared(features: Features) -> str | None:
    """Return the digest of the unit's shared examples with these features; None for other features.

    An object store may map the same examples to new arrays at other addresses in each unit. The digest is that of their
    content, which the examples bring along from the driver. Arrays that can be written to have no digest.
    """
    examples = (_shared_features.get() or {}).get(id(features))
    is_writeable = isinstance(features, np.ndarray) and features.flags.writeable
    return None if examples is None or is_writeable else examples.digest


def digest_of(array: NDArray[np.float32]) -> str:
    """Return the SHA-256 of an array's shape and content."""
    hasher = hashlib.sha256(repr(array.shape).encode())
    hasher.update(np.ascontiguousarray(array).data)
    return hasher.hexdigest()


def on_device(array: NDArray[np.float32], compute: Compute, digest: str | None = None) -> Tensor:
    """Return `array` as a tensor on the unit's device, which must not be written to.

    On a GPU, the tensor of an earlier call with the same `digest` is returned. Tensors with a digest stay on the GPU
    until they exceed `RESIDENT_SHARE` of the unit's memory, the one used longest ago leaving first.

    Raises: TrainingError if the GPU has too little memory for the array.
    """
    if not _on_gpu(compute):
        return moved(array, compute.device)
    key = (digest or "", compute.device)
    if key in _resident:
        _resident.move_to_end(key)
        return _resident[key]
    limit, keeps = RESIDENT_SHARE * unit_bytes(compute), digest is not None and may_stay(array, compute)
    while _resident and sum(resident_bytes().values()) + (array.nbytes if keeps else 0) > limit:
        _resident.popitem(last=False)
    tensor = _moved_if_it_fits(array, compute.device)
    if tensor is None and release_resident():
        tensor = _moved_if_it_fits(array, compute.device)
    if tensor is None:
        raise TrainingError(
            f"the GPU has too little memory for the data, {array.nbytes:,} bytes. Give the unit a larger share of a "
            "GPU, or use fewer rows."
        )
    if keeps:
        _resident[key] = tensor
    return tensor


def may_stay(array: NDArray[np.float32], compute: Compute) -> bool:
    """True if the unit has a GPU of which `array` takes at most `RESIDENT_SHARE`."""
    return _on_gpu(compute) and array.nbytes <= RESIDENT_SHARE * unit_bytes(compute)


def moved(array: NDArray[np.float32], device: str) -> Tensor:
    """Return `array` as a tensor on `device`; it shares memory with a writable array on the CPU."""
    import torch

    # Copy read-only arrays from an object store, which torch cannot wrap. Other orders are copied once here, not by
    # every model and epoch.
    writeable = np.ascontiguousarray(array) if array.flags.writeable else np.array(array, order="C")
    return torch.from_numpy(writeable).to(torch.device(device))


def resident_bytes() -> dict[str, int]:
    """Return the bytes of the data that stay on GPUs, by their digest."""
    return {digest: tensor.nbytes for (digest, _), tensor in _resident.items()}


def release_resident(keep: Tensor | None = None) -> int:
    """Delete the data that stay on GPUs, except `keep`, and return their bytes; unused memory goes back to the GPU."""
    released = 0
    for key, tensor in list(_resident.items()):
        if tensor is not keep:
            del _resident[key]
            released += tensor.nbytes
    gc.collect()  # a failed training may be part of a reference cycle
    if find_spec("torch") is not None:
        import torch

        torch.cuda.empty_cache()  # does nothing before the first use of a GPU
    return released


def fit_on_emptied_gpu(fit: Callable[[], T]) -> T:
    """Return the result of `fit`, a training of one model; it is called again without other data on a full GPU.

    Raises: TrainingError if the GPU has too little memory for it alone.
    """
    for _ in range(2):
        try:
            return fit()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        release_resident()  # after the block, which holds the tensors of the failed call
    raise TrainingError(NO_ROOM_FOR_A_MODEL)


def is_out_of_memory(error: BaseException) -> bool:
    """True if `error` says that a GPU, or a library on it, could not allocate memory."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError):
        return False
    text = str(error)
    by_library = "CUDA error: out of memory" in text or "_STATUS_ALLOC_FAILED" in text
    return by_library or isinstance(error, torch.cuda.OutOfMemoryError)


def _moved_if_it_fits(array: NDArray[np.float32], device: str) -> Tensor | None:
    try:
        return moved(array, device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None


def _on_gpu(compute: Compute) -> bool:
    return compute.device.startswith("cuda")
