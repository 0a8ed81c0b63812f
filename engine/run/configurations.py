"""State of each configuration of a sweep, from the file that the sweep writes and the events of its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from dpaudit.actors.events import Event, EventKind
from dpaudit.engine.answer.stated_values import StatedValue
from dpaudit.errors import shortened

CONFIGURATIONS = "configurations.json"
"""File of a sweep's folder: the name of each configuration, its state, and the keys of the units that audit it."""
MAX_LISTED = 8  # configurations that are listed for each state except done
_FAILED = {EventKind.UNIT_FAILED, EventKind.UNIT_SKIPPED}


class ConfigurationState(StrEnum):
    """State of a configuration, in the order in which states are printed."""

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"  # before it was audited


class _RecordedState(StrEnum):
    """State of a configuration in the file."""

    AUDITED = "audited"
    STOPPED = "stopped"
    FAILED = "failed"


def configuration_states(
    content: bytes, source: str, events: Sequence[Event]
) -> tuple[tuple[str, ConfigurationState], ...]:
    """Return the name and state of each configuration.

    Args:
        content: Content of the file `CONFIGURATIONS`, which anyone may have written.
        source: Name of the file, for messages.
        events: All events of the run, including those of earlier drivers.
    Raises: SpecError if the content is invalid.
    """
    stated = StatedValue.parse(content, source, remedy="`dpaudit sweep --restore` writes it again")
    is_over = stated["over"].value is True
    started = {event.unit for event in events if event.kind is EventKind.UNIT_STARTED}
    last = {event.unit: event.kind for event in events if event.kind in {EventKind.UNIT_DONE, *_FAILED}}
    return tuple(
        (
            entry["name"].name(),
            _state(entry["state"].member(_RecordedState), _keys(entry["units"]), is_over, started, last),
        )
        for entry in stated["configurations"].items()
    )


def _keys(units: StatedValue) -> list[str]:
    return [unit.name() for unit in units.items()]


def _state(
    recorded: _RecordedState, units: Iterable[str], is_over: bool, started: set[str], last: dict[str, EventKind]
) -> ConfigurationState:
    if recorded is not _RecordedState.AUDITED:
        return ConfigurationState(recorded.value)
    ended = [last.get(unit) for unit in units]
    if any(kind in _FAILED for kind in ended):
        return ConfigurationState.FAILED
    if is_over or all(kind is EventKind.UNIT_DONE for kind in ended):
        return ConfigurationState.DONE
    is_started = any(unit in started for unit in units)
    return ConfigurationState.RUNNING if is_started else ConfigurationState.WAITING


def described_states(states: Sequence[tuple[str, ConfigurationState]]) -> list[str]:
    """Return lines with the number of configurations in each state, then the names of unfinished ones."""
    counts = Counter(state for _, state in states)
    always = {ConfigurationState.DONE, ConfigurationState.RUNNING, ConfigurationState.FAILED}
    printed = [state for state in ConfigurationState if state in always or counts[state]]
    lines = [f"{len(states)} configurations: " + ", ".join(f"{counts[state]} {state}" for state in printed)]
    for state in printed[1:]:
        names = [shortened(name) for name, own_state in states if own_state is state]
        if not names:
            continue
        more = f"; and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        lines.append(f"  {state}: {'; '.join(names[:MAX_LISTED])}{more}")
    return lines
