"""Resources that a spec requests for the units of a run, or for the trainings of one mechanism."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

from dpaudit.actors.unit import Resources
from dpaudit.errors import require
from dpaudit.field_checks import check_fields

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])(i?)B", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class ResourceRequest:
    """Resources that one unit requests. Ray gets them as they stand; None states nothing.

    Attributes:
        cpus: CPU threads, >= 1. Default: 1.
        gpus: Share of one GPU in [0, 1]. Units with a share below 1 share it. Default: none.
        memory: Memory that Ray counts as taken on the unit's node: bytes, or text such as "8GB" or "512MiB". It limits
            how many units run on a node, not what a unit uses. Default: none.
        custom: Amounts of other resources of nodes by name, such as `{"accelerator_type:H100": 0.001}`: each in
            [0.0001, 1], or a whole number. Default: none.
    """

    cpus: int | None = None
    gpus: float | None = None
    memory: int | str | None = None
    custom: dict[str, float] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.memory, str):
            object.__setattr__(self, "memory", _bytes_in(self.memory))
        self.per_unit()  # refuses amounts that are out of range

    def over(self, other: ResourceRequest) -> ResourceRequest:
        """Return this request; fields that it does not state are those of `other`."""
        unstated = [field.name for field in fields(self) if getattr(self, field.name) is None]
        return replace(self, **{name: getattr(other, name) for name in unstated})

    def per_unit(self) -> Resources:
        """Return the resources of a unit."""
        assert not isinstance(self.memory, str)
        return Resources(
            1 if self.cpus is None else self.cpus,
            self.gpus or 0.0,
            self.memory or 0,
            tuple((self.custom or {}).items()),
        )


def _bytes_in(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    require(match is not None, 'memory must be a number of bytes, or text such as "8GB" or "512MiB"', memory=text)
    assert match is not None
    number, prefix, binary = match.groups()
    scale: int = (1024 if binary else 1000) ** _POWERS[prefix.upper()]
    return round(float(number) * scale)
