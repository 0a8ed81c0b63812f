"""Several processes of one node that divide the batches of a training, each on a GPU of its own.

The unit's process starts the others. All train the same models from the same seeds: each computes the gradient of its
share of a batch, and the sum of their gradients makes the step. Only the unit's process adds noise and canaries,
writes checkpoints and returns models.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TypeAlias, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import torch
from torch import Tensor, distributed

from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.gpu_memory import is_out_of_memory

T = TypeVar("T")

START = "import sys; from dpaudit.mechanisms.training.divided import serve; serve(int(sys.argv[1]))"
ENDED_S = 0.5  # time in which a process whose connection broke has ended

_Process: TypeAlias = tuple[subprocess.Popen[bytes], Connection]


@dataclass(frozen=True)
class Group:
    """Processes that divide the batches of a training, and the place of this one among them."""

    rank: int  # place of this process; 0 is the unit's process
    size: int  # number of processes, >= 2

    @property
    def share(self) -> slice:
        """Positions in a batch of the examples of this process."""
        return slice(self.rank, None, self.size)

    def add(self, *sums: Tensor) -> None:
        """Replace each tensor by its sum over the processes."""
        for part in sums:
            distributed.all_reduce(part)

    def follow_first(self, value: Tensor) -> None:
        """Replace a tensor by that of the unit's process."""
        distributed.broadcast(value, 0)


_group: ContextVar[Group | None] = ContextVar("processes of the training", default=None)


def current_group() -> Group | None:
    """Return the processes that divide the batches of the running training; None for one process."""
    return _group.get()


def train_divided(train: Callable[[Compute], T], train_others: Callable[[Compute], object], compute: Compute) -> T:
    """Return `train(...)` of this process, while each other process runs `train_others(...)`.

    Raises: TrainingError if another process ends; errors of `train` pass.
    """
    size = compute.processes
    each = replace(compute, threads=max(1, compute.threads // size), processes=1)
    others: list[_Process] = []
    with tempfile.TemporaryDirectory(prefix="dpaudit-ranks-") as folder, _leaving_group(), _ending(others):
        store = f"{folder}/store"
        for rank in range(1, size):
            device = each.device.replace("cuda:0", f"cuda:{rank}")
            training = partial(train_others, replace(each, device=device))
            others.append(_start((training, Group(rank, size), store, device)))
        for _, connection in others:
            connection.recv_bytes()  # it has loaded its libraries
        _join(Group(0, size), store, each.device)
        return train(each)


def _start(job: object) -> _Process:
    """Start a process, and send it what it runs."""
    parent_end, child_end = Pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(child_end.fileno())],
        pass_fds=(child_end.fileno(),),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # so that Ctrl-C reaches only the driver
    )
    child_end.close()
    with contextlib.suppress(OSError):  # it has ended, which the first message from it shows
        parent_end.send_bytes(cloudpickle.dumps(job))
    return process, parent_end


def serve(number: int) -> None:
    """Train in this process, which ends with the unit's process."""
    connection = Connection(number)
    train, group, store, device = cloudpickle.loads(connection.recv_bytes())
    connection.send_bytes(b"up")
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    _join(group, store, device)
    train()


def _end_with_parent(connection: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        connection.recv_bytes()
    os._exit(1)


def _join(group: Group, store: str, device: str) -> None:
    """Wait for the other processes, and make them those of the trainings that follow."""
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"file://{store}", rank=group.rank, world_size=group.size
    )
    _group.set(group)


@contextlib.contextmanager
def _leaving_group() -> Iterator[None]:
    hook = sys.excepthook  # torch replaces it
    try:
        yield
    finally:
        if current_group() is not None:
            _group.set(None)
            distributed.destroy_process_group()
            sys.excepthook = hook


@contextlib.contextmanager
def _ending(others: list[_Process]) -> Iterator[None]:
    """End the other processes after the block, in which an error is a TrainingError if one of them has ended."""
    try:
        yield
    except (RuntimeError, OSError, EOFError) as err:
        how = "" if is_out_of_memory(err) else next(filter(None, (_how_it_ended(process) for process, _ in others)), "")
        if how:
            raise TrainingError(f"one of the {len(others) + 1} processes of the training ended {how}") from err
        raise
    finally:
        for process, connection in others:
            connection.close()
            process.kill()
            process.wait()


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """Return how a process has ended, in words; "" if it runs."""
    try:
        code = process.wait(ENDED_S)
    except subprocess.TimeoutExpired:
        return ""
    return f"by {signal.Signals(-code).name}" if -code in [*signal.Signals] else f"with exit code {code}"
