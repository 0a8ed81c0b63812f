"""What one piece of work may use, and how a training fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpaudit.errors import AuditError, require


class TrainingError(AuditError):
    """A training went wrong for this seed (NaN loss, a library's error, out of memory); it may be tried again."""


@dataclass(frozen=True)
class Compute:
    """What one piece of work may use."""

    threads: int = 1  # CPU threads, >= 1
    device: str = "cpu"  # A device name of torch ("cpu", "cuda:0")
    # A folder of this piece's own for checkpoints of a long training; they change no result. None keeps none
    scratch: Path | None = None
    device_share: float = 1.0  # of a GPU's memory, how much is this piece's, in (0, 1]

    def __post_init__(self) -> None:
        require(self.threads >= 1, "threads must be >= 1", threads=self.threads)
        require(0 < self.device_share <= 1, "device_share must be in (0, 1]", device_share=self.device_share)
