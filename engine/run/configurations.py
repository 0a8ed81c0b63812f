"""How the configurations of a sweep stand, from the file that the sweep writes and the events of its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from dpaudit.actors.events import Event, EventKind
from dpaudit.engine.reading.stated_values import StatedValue
from dpaudit.errors import shortened

CONFIGURATIONS = "configurations.json"
"""File of a sweep's folder: the name of each configuration, its state, and the keys of the units that audit it."""
SHOWN = 8  # configurations that are named, of each state but the first
_FAILED = {EventKind.UNIT_FAILED, EventKind.UNIT_SKIPPED}


class ConfigurationState(StrEnum):
    """How a configuration stands, in the order in which states are printed."""

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"  # before it was audited


class _Noted(StrEnum):
    """State of a configuration in the file."""

    AUDITED = "audited"
    STOPPED = "stopped"
    FAILED = "failed"


def configuration_states(
    content: bytes, source: str, events: Sequence[Event]
) -> tuple[tuple[str, ConfigurationState], ...]:
    """Return the name and state of each configuration.

    Args:
        content: The file `CONFIGURATIONS`, which anybody may have written.
        source: The file's name, for messages.
        events: All events of the run, of earlier drivers as well.
    Raises: SpecError for another content.
    """
    stated = StatedValue.parse(content, source, remedy="`dpaudit sweep --restore` writes it anew")
    over = stated["over"].value is True
    started = {event.unit for event in events if event.kind is EventKind.UNIT_STARTED}
    last = {event.unit: event.kind for event in events if event.kind in {EventKind.UNIT_DONE, *_FAILED}}
    return tuple(
        (one["name"].name(), _state(one["state"].member(_Noted), _keys(one["units"]), over, started, last))
        for one in stated["configurations"].items()
    )


def _keys(units: StatedValue) -> list[str]:
    return [unit.name() for unit in units.items()]


def _state(
    noted: _Noted, units: Iterable[str], over: bool, started: set[str], last: dict[str, EventKind]
) -> ConfigurationState:
    if noted is not _Noted.AUDITED:
        return ConfigurationState(noted.value)
    ended = [last.get(unit) for unit in units]
    if any(kind in _FAILED for kind in ended):
        return ConfigurationState.FAILED
    if over or all(kind is EventKind.UNIT_DONE for kind in ended):
        return ConfigurationState.DONE
    begun = any(unit in started for unit in units)
    return ConfigurationState.RUNNING if begun else ConfigurationState.WAITING


def described_states(states: Sequence[tuple[str, ConfigurationState]]) -> list[str]:
    """Lines for people: how many configurations are in each state, then the names of those that are not done."""
    counts = Counter(state for _, state in states)
    lines = [f"{len(states)} configurations: " + ", ".join(f"{counts[each]} {each}" for each in _shown(counts))]
    for state in _shown(counts)[1:]:
        names = [shortened(name) for name, each in states if each is state]
        if not names:
            continue
        more = f"; and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"  {state}: {'; '.join(names[:SHOWN])}{more}")
    return lines


def _shown(counts: Counter[ConfigurationState]) -> list[ConfigurationState]:
    """The states to print: done, running and failed always, others where a configuration is in them."""
    always = {ConfigurationState.DONE, ConfigurationState.RUNNING, ConfigurationState.FAILED}
    return [each for each in ConfigurationState if each in always or counts[each]]
