"""Sums over the processes of a distributed training, by torch.distributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require

Floats = NDArray[np.float64]

Share = Literal["records", "weights"]
"""Division of a training: each process has the gradients of other records, or of other weights."""


@dataclass(frozen=True)
class Processes:
    """The processes of a training.

    Attributes:
        share: Division of the training among them; None for a training in one process.
        rank: Number of this process.
        count: Number of processes.
    """

    share: Share | None = None
    rank: int = 0
    count: int = 1

    @classmethod
    def of(cls, share: Share | None) -> Processes:
        """Return the processes of this training. Raises: InputError if torch.distributed is not initialised."""
        if share is None:
            return cls()
        import torch.distributed as dist

        started = dist.is_available() and dist.is_initialized()
        require(started, "distributed needs a process group", do="call torch.distributed.init_process_group first")
        return cls(share, dist.get_rank(), dist.get_world_size())

    @property
    def adds_canaries(self) -> bool:
        """True if this process adds canaries to its gradients: the first one, or each one to its own weights."""
        return self.share != "records" or self.rank == 0

    @property
    def shares(self) -> int:
        """Number of processes that each have a part of the weights."""
        return self.count if self.share == "weights" else 1

    def of_all(self, share: Share, values: Floats) -> Floats:
        """Return the sum of the values of all processes if the training is divided so, else the values."""
        return self.summed(values) if self.share == share else values

    def summed(self, values: Floats) -> Floats:
        """Return the sum of the values of all processes, which all of them must ask for."""
        if self.share is None:
            return values
        import torch
        import torch.distributed as dist

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        total = torch.from_numpy(np.ascontiguousarray(values)).to(device)
        dist.all_reduce(total)
        return np.asarray(total.cpu().numpy(), np.float64)
