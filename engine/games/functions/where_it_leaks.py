"""Where a function treats two neighbouring tables differently: replays with the same seeds, after a VIOLATION.

What is said here is a hint for whoever mends the function, and part of no verdict. With the same seed an honest
function gives a number moved by a fixed amount, small against its noise, and draws with the same arguments. Whatever
else is seen on one table alone differs beyond noise: so often that the claim allows it with a chance of 1 in 10,000.
At epsilon above 4, or where a call takes long, fewer replays must do: what all of them show.
"""

from __future__ import annotations

import itertools
import linecache
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.claims import Claim
from dpaudit.claims.scope import NO_FRACTIONS
from dpaudit.engine.games.functions import moved_numbers
from dpaudit.engine.games.functions.watched import (
    ARGUMENTS,
    Draw,
    OutOfTime,
    Pairs,
    Part,
    Watched,
    watched,
)
from dpaudit.errors import shortened
from dpaudit.mechanisms.queries.outcome import CallOutcome

FEWEST, MOST = 64, 600  # replays
FOR_BITS = 3_000  # replays at most, where nothing else is found
TABLES = ("D", "D'")


@dataclass(frozen=True)
class Leak:
    """Where it leaks, in sentences; "" where there is nothing to say.

    Attributes:
        field: What comes back and differs beyond noise.
        call: The first draw from the generator that is asked for otherwise.
        line: The first line that one table alone goes on from in its way; it need not leak.
        note: Why numbers cannot be compared one by one: from some draw on, or at all.
        replays: Seeds that were played on both tables.
    """

    field: str
    call: str
    line: str
    note: str
    replays: int

    @property
    def found(self) -> bool:
        """Whether anything but a line differs beyond noise."""
        return bool(self.field or self.call)

    @property
    def lines(self) -> tuple[str, ...]:
        """Two or three short sentences for people."""
        if self.found:
            return tuple(filter(None, (self.field, self.call, self.line, "" if self.field else self.note)))
        if not self.replays:
            return ("No call ended in time.",)
        if self.note == NO_FRACTIONS:
            return (self.note,)
        hints = tuple(filter(None, (self.line, self.note)))
        nothing = (
            f"No result stands out in {self.replays} replays with the same seeds: the noise may be too small for what "
            "one row moves (too little of it, values not clipped, or the whole epsilon spent more than once)."
        )
        return f"{nothing} The first difference in the way, which may or may not matter:" if hints else nothing, *hints

    def __str__(self) -> str:
        return "\n".join(self.lines)


def where_it_leaks(
    function: Callable[..., Any],
    d: pa.Table,
    d_prime: pa.Table,
    claim: Claim,
    *,
    form: str = "frame",
    settings: Mapping[str, Any] | None = None,
    also: Sequence[str] = (),
    seed: int = 0,
    limit_s: float = 20.0,
    low_bits: bool = False,
) -> Leak:
    """Replays `function(rows, rng, **settings)` on both tables with the same seeds.

    Args:
        d, d_prime: Neighbours under the claim's relation.
        form: Of the rows: one of `worker.FORMS`.
        also: Packages whose lines are followed, beside the function's own top-level package or file.
        limit_s: No call begins later, and none runs on in the lines that are followed.
        low_bits: True to look at nothing but the low bits of numbers, which are left out otherwise.
    Raises: InputError when the form cannot hold a table.
    """
    until = time.monotonic() + limit_s
    pairs: list[tuple[Watched, Watched]] = []

    def replay(table: pa.Table, seed: int, follow: bool) -> Watched:
        return watched(function, table, seed, form=form, settings=settings or {}, also=also, until=until, follow=follow)

    seeds = _seeds(seed)
    note, follow = "", True
    try:
        for each in seeds[: _wanted(claim)]:
            pairs.append((replay(d, each, follow), replay(d_prime, each, follow)))
            follow = not any(call.cut for call in pairs[-1])
            if time.monotonic() > until:
                break
        note = "" if _same(pairs[0][0], replay(d, seeds[0], False)) else _NOT_REPLAYED
    except OutOfTime:
        pass
    more = ((replay(d, each, False), replay(d_prime, each, False)) for each in seeds[_wanted(claim) :])
    return _leak(pairs, claim, note, _until(more, until), low_bits)


def where_it_leaks_elsewhere(
    call: Callable[[pa.Table, Sequence[int]], list[CallOutcome]],
    d: pa.Table,
    d_prime: pa.Table,
    claim: Claim,
    *,
    seed: int = 0,
    limit_s: float = 20.0,
    low_bits: bool = False,
) -> Leak:
    """As `where_it_leaks`, by what comes back alone: `call` is that of a function in another Python."""
    until = time.monotonic() + limit_s
    seeds = _seeds(seed)

    def replays(seeds: Sequence[int]) -> Iterator[tuple[Watched, Watched]]:
        for start in range(0, len(seeds), 8):
            some = seeds[start : start + 8]
            yield from zip(map(_seen, call(d, some)), map(_seen, call(d_prime, some)), strict=True)

    again = _seen(call(d, seeds[:1])[0])
    pairs = list(_until(replays(seeds[: _wanted(claim)]), until))
    note = "" if _same(pairs[0][0], again) else _NOT_REPLAYED
    return _leak(pairs, claim, note, _until(replays(seeds[_wanted(claim) :]), until), low_bits)


_NOT_REPLAYED = "The same seed on the same table gives other results: it takes randomness from elsewhere, or remembers."


def _seeds(seed: int) -> list[int]:
    return [int(each) for each in np.random.SeedSequence(seed).generate_state(FOR_BITS)]


def _wanted(claim: Claim) -> int:
    return min(MOST, max(FEWEST, _often(claim)))


def _until(pairs: Iterable[tuple[Watched, Watched]], until: float) -> Iterator[tuple[Watched, Watched]]:
    """Until the time is over; one at least."""
    for pair in pairs:
        yield pair
        if time.monotonic() > until:
            return


def _seen(outcome: CallOutcome) -> Watched:
    raised = f"raises {outcome.fault}" if outcome.ending.startswith("raises ") else ""
    numbers = outcome.numbers[: len(outcome.numbers) - outcome.low_bits]
    return Watched({"result": Part(outcome.ending, numbers)}, raised)


def _same(one: Watched, other: Watched) -> bool:
    return one.parts.keys() == other.parts.keys() and all(
        part.ending == other.parts[name].ending and np.array_equal(part.numbers, other.parts[name].numbers)
        for name, part in one.parts.items()
    )


def _often(claim: Claim) -> int:
    """How often the claim lets one table alone show something, with probability CHANCE."""
    low, high = 0.0, 1.0
    for _ in range(50):  # the test whose two errors are alike
        middle = (low + high) / 2
        low, high = (middle, high) if claim.curve.miss_rate(middle) > middle else (low, middle)
    return math.ceil(math.log(moved_numbers.CHANCE) / math.log1p(-max(low, 1e-9)))


def _leak(pairs: Pairs, claim: Claim, note: str, more: Iterable[tuple[Watched, Watched]], low_bits: bool) -> Leak:
    """Return what replays show; `more` of them are made to look at low bits."""
    if not pairs:
        return Leak("", "", "", "", 0)
    if low_bits:
        whole = not any(_fractions(part) for pair in pairs for call in pair for part in call.parts.values())
        return Leak(_low_bits(pairs, more, claim), "", "", NO_FRACTIONS if whole else "", len(pairs))
    often = min(_often(claim), len(pairs))
    call, out_of_step = _draws(pairs, often)
    return Leak(_field(pairs, claim, often), call, _line(pairs, often), note or out_of_step, len(pairs))


@dataclass(frozen=True)
class _Alone:
    """What is seen on D and what on D', where one of them is seen so many times and not on the other table."""

    here: Any
    there: Any
    times: int


def _alone(here: Sequence[Hashable], there: Sequence[Hashable], often: int) -> _Alone | None:
    on_d, on_d_prime = Counter(here), Counter(there)
    usual, usual_prime = on_d.most_common(1)[0][0], on_d_prime.most_common(1)[0][0]
    for seen, times in on_d_prime.most_common():
        if times >= often and seen not in on_d:
            return _Alone(usual, seen, times)
    for seen, times in on_d.most_common():
        if times >= often and seen not in on_d_prime:
            return _Alone(seen, usual_prime, times)
    return None


# What came back


def _names(pairs: Pairs) -> list[str]:
    return sorted({name for pair in pairs for call in pair for name in call.parts}, key=lambda name: (len(name), name))


def _fractions(part: Part) -> bool:
    return bool((part.numbers % 1 != 0).any())


def _low_bits(pairs: Pairs, more: Iterable[tuple[Watched, Watched]], claim: Claim) -> str:
    """What the low bits of numbers tell, by more replays; "" where there are no numbers with a fraction."""
    if not any(_fractions(part) for pair in pairs[:1] for call in pair for part in call.parts.values()):
        return ""
    room = max(0, min(FOR_BITS, moved_numbers.replays_for_bits(claim)) - len(pairs))
    every = [*pairs, *itertools.islice(more, room)]
    return _first(moved_numbers.low_bits_that_differ(every, _names(every), claim))


def _field(pairs: Pairs, claim: Claim, often: int) -> str:
    names = _names(pairs)
    endings = _first([_ending(pairs, name, often) for name in names])
    return endings or _first(moved_numbers.numbers_that_differ(pairs, names, claim, often))


def _first(sentences: Sequence[str]) -> str:
    said = [sentence for sentence in sentences if sentence]
    more = f" {len(said) - 1} more of its parts differ too." if len(said) > 1 else ""
    return said[0] + more if said else ""


def _ending(pairs: Pairs, name: str, often: int) -> str:
    def of(call: Watched) -> str:
        return call.parts[name].ending if name in call.parts else ""

    found = _alone([of(one) for one, _ in pairs], [of(other) for _, other in pairs], often)
    if found is None:
        return ""
    replays = f"in {found.times} of {len(pairs)} replays"
    for side, ending in enumerate((found.here, found.there)):
        call = next(pair[side] for pair in pairs if of(pair[side]) == ending)
        if call.raised:
            return f"On {TABLES[side]} alone it {shortened(call.raised, 200)}, {replays}."
    if found.here and found.there:
        return f"`{name}` is {shortened(found.here)} on D and {shortened(found.there)} on D', {replays}."
    alone = f"on {TABLES[0 if found.here else 1]} alone, {replays}"
    if name == "warnings":
        return f"It warns {alone}: {shortened(found.here or found.there)}."
    return f"`{name}` comes back {alone}."


# What was drawn


def _draws(pairs: Pairs, often: int) -> tuple[str, str]:
    """The first draw of noise that is asked for otherwise on D' than on D; and the first that is more or less of one.

    A draw that one table alone makes need not leak: the number it is added to may never come back.
    """
    note = ""
    for place in range(max(len(call.draws) for pair in pairs for call in pair)):
        here, there = ([_drawn(pair[side], place) for pair in pairs] for side in (0, 1))
        made = [draw for draw in here + there if draw is not None]

        def alone(name: str) -> _Alone | None:
            return _alone([_about(each, name) for each in here], [_about(each, name) for each in there], often)  # noqa: B023

        methods, sizes = alone("method"), alone("size")
        if methods is not None:
            said = f"Draw {place + 1} is {_made(here, methods.here)} on D and {_made(there, methods.there)} on D'"
            in_step = all(len(one.draws) == len(other.draws) for one, other in pairs)
            noise = ARGUMENTS.keys() >= {methods.here, methods.there}
            return (f"{said}.", note) if in_step and noise else ("", note or f"{said}: {_FROM_THERE}")
        if sizes is not None and not note:
            what = f"draws {sizes.here} values on D and {sizes.there} on D'"
            note = f"rng.{made[0].method} at {made[0].place} {what}: {_FROM_THERE}"
        for name in dict.fromkeys(name for draw in made for name in draw.arguments if name not in ("loc", "mean")):
            found = alone(name)
            if found is not None:
                what = f"is asked for {name} {_shown(found.here)} on D and {_shown(found.there)} on D'"
                return f"rng.{made[0].method} at {made[0].place} {what}.", note
    return "", note


_FROM_THERE = "from there on the same seed gives other numbers."


def _drawn(call: Watched, place: int) -> Draw | None:
    return call.draws[place] if place < len(call.draws) else None


def _about(draw: Draw | None, name: str) -> Hashable:
    if draw is None:
        return None
    return draw.arguments[name] if name in draw.arguments else {"method": draw.method, "size": draw.size}.get(name)


def _made(draws: Sequence[Draw | None], method: str | None) -> str:
    draw = next((draw for draw in draws if draw is not None and draw.method == method), None)
    return f"rng.{draw.method} ({draw.place})" if draw is not None else "not made"


def _shown(value: Hashable) -> str:
    return f"{value:.9g}" if isinstance(value, float) else shortened(value, 60)


# Which way it went


def _line(pairs: Pairs, often: int) -> str:
    """The first line that is followed by one that does not follow it on the other table."""
    if any(call.cut for pair in pairs for call in pair):
        return ""
    ways: dict[tuple[str, str, int], tuple[Counter[int], Counter[int]]] = {}
    for pair in pairs:
        for side, call in enumerate(pair):
            for origin, lines in call.steps.items():
                ways.setdefault(origin, (Counter(), Counter()))[side].update(lines)
    for origin, taken in ways.items():
        for side in (1, 0):
            mine, other = taken[side], taken[1 - side]
            alone = [line for line in sorted(mine) if mine[line] >= often and line not in other]
            if alone and other:
                return _branch(origin, alone[0], sorted(other), side)
    return ""


def _branch(origin: tuple[str, str, int], line: int, other: Sequence[int], side: int) -> str:
    file, function, number = origin
    text = linecache.getline(file, number).strip()
    where = f"Line {number} of {os.path.basename(file)} (`{shortened(text, 80)}`)" if number else f"`{function}`"

    def named(lines: Sequence[int]) -> str:
        return " or ".join(f"line {each}" if each else f"the end of `{function}`" for each in lines)

    return f"{where} goes on to {named([line])} on {TABLES[side]} alone, on {TABLES[1 - side]} to {named(other)}."
