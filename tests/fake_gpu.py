"""A stand-in for a GPU: tensors stay on the CPU, and its memory is a number."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.mechanisms import gpu_memory
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.training.stack import Stack

GPU = Compute(device="cuda:0")


class FakeGpu:
    """The GPU "cuda:0" of this process until the test ends.

    Attributes:
        moved: Bytes of each array copied to it.
        limits: Share and device of each limit set for this process.
        trained: Sizes of the stacks that started an epoch, including those that did not fit.
        largest_stack: Number of models that fit in its memory.
        largest_array: Bytes of the largest array that fits together with those that stay on it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, memory: int = 10**9) -> None:
        self.moved: list[int] = []
        self.limits: list[tuple[float, str]] = []
        self.trained: list[int] = []
        self.largest_stack = self.largest_array = 10**12
        card, moved, run_epoch = SimpleNamespace(total_memory=memory), gpu_memory.moved, Stack.run_epoch

        def copied(array: NDArray[np.float32], device: str) -> Tensor:
            if device == "cpu":
                return moved(array, device)
            if array.nbytes > self.largest_array - sum(gpu_memory.resident_bytes().values()):
                raise out_of_memory()
            self.moved.append(array.nbytes)
            return torch.from_numpy(np.array(array))

        def limited(stack: Stack, epoch: int) -> None:
            self.trained.append(len(stack.tasks))
            if len(stack.tasks) > self.largest_stack:
                raise out_of_memory()
            run_epoch(stack, epoch)

        monkeypatch.setattr(gpu_memory, "moved", copied)
        monkeypatch.setattr(gpu_memory, "_held_shares", {})
        monkeypatch.setattr(gpu_memory, "_resident", type(gpu_memory._resident)())
        monkeypatch.setattr(Stack, "run_epoch", limited)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
        monkeypatch.setattr(
            torch.cuda, "set_per_process_memory_fraction", lambda share, device: self.limits.append((share, device))
        )


def out_of_memory() -> RuntimeError:
    """Return torch's error for a GPU that is full."""
    return torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
