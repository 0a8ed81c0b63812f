"""Answers of slow twins: quick tests read them from a record, nightly tests recompute them and compare.

A twin marked `@recorded` is called like any other function. `python -m tests.twins.record` runs the tests that call
twins and writes their questions and answers to `tests/twins/recorded`, one file for each module of twins.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import numbers
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from mpmath import mp, mpf

from tests import nightly

HERE = Path(__file__).parent
FOLDER = HERE / "recorded"
REMEDY = "Run `python -m tests.twins.record` and commit tests/twins/recorded."
DIGITS = 30
"""Decimal digits recorded of a high-precision answer. The roots of the twins are accurate to 22."""
WORKING_DIGITS = 50
"""Smallest number of decimal digits that a twin computes with."""
LONG = 160
"""Longest text of a call's arguments that the record holds, in characters. Longer texts are hashed."""

P = ParamSpec("P")
R = TypeVar("R")
Answers = dict[str, Any]
"""Answer by question. A high-precision number or a fraction is text; a float reads back as the same float."""


class StaleRecord(Exception):
    """Raised if the record lacks an answer, or holds one of another version of the twin."""


class _State:
    """Answers by module while the record is being written (else None), and the number of twins that are running."""

    noted: dict[str, Answers] | None = None
    at_work = 0


def recorded(twin: Callable[P, R]) -> Callable[P, R]:
    """Return the slow `twin` with its answers read from the record, or by night computed and compared with the record.

    Its arguments must be numbers, text and sequences of them. A twin called by another running twin is computed.
    """
    module = twin.__module__.rpartition(".")[2]

    @functools.wraps(twin)
    def answer(*arguments: P.args, **options: P.kwargs) -> R:
        if _State.at_work:
            return twin(*arguments, **options)
        question = _question(twin.__name__, arguments, options)

        def compute() -> Any:
            # The answer must not depend on the precision that a test has set.
            with _working(), mp.workdps(max(mp.dps, WORKING_DIGITS)):
                return encoded(twin(*arguments, **options))

        if _State.noted is not None:
            noted, earlier = _State.noted.setdefault(module, {}), _still_true(module)
            if question not in noted:
                noted[question] = earlier[question] if question in earlier else compute()
            return cast(R, decoded(noted[question]))
        answers = recorded_answers(module)
        if nightly.on():
            computed = compute()
            if question in answers and not agree(decoded(answers[question]), decoded(computed)):
                raise StaleRecord(
                    f"{module}.{question} is {computed}, but {answers[question]} is recorded. "
                    f"Both must be the same: find out which one is wrong. {REMEDY}"
                )
            return cast(R, decoded(computed))
        if question not in answers:
            raise StaleRecord(f"{module}.{question} is not recorded. Each question of a day's test must be. {REMEDY}")
        return cast(R, decoded(answers[question]))

    return answer


@contextmanager
def noting() -> Iterator[dict[str, Answers]]:
    """Yield the answers of recorded twins by module, filled in during the block. Missing answers are computed."""
    _State.noted = noted = {}
    try:
        yield noted
    finally:
        _State.noted = None


@contextmanager
def _working() -> Iterator[None]:
    _State.at_work += 1
    try:
        yield
    finally:
        _State.at_work -= 1


def write(noted: dict[str, Answers], folder: Path) -> None:
    """Write a record for each module, and remove the records of modules without answers."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.json"):
        if path.stem not in noted:
            path.unlink()
    for module, answers in noted.items():
        lines = [f"{json.dumps(question)}: {json.dumps(answers[question])}" for question in sorted(answers)]
        text = f'{{"source": "{source_hash(module)}",\n"answers": {{\n' + ",\n".join(lines) + "\n}}\n"
        (folder / f"{module}.json").write_text(text)


@functools.cache
def recorded_answers(module: str) -> Answers:
    """Return the recorded answers of a module of twins.

    Raises: StaleRecord if there is no record, or if the twins have changed since it was written.
    """
    path = FOLDER / f"{module}.json"
    if not path.exists():
        raise StaleRecord(f"No answers of {module} are recorded. Each slow twin must have a record. {REMEDY}")
    record = json.loads(path.read_text())
    if record["source"] != source_hash(module):
        raise StaleRecord(f"{module}, or a twin that it uses, has changed since its answers were recorded. {REMEDY}")
    return cast(Answers, record["answers"])


def _still_true(module: str) -> Answers:
    """Return the recorded answers of a module of twins, none if they are stale."""
    try:
        return recorded_answers(module)
    except StaleRecord:
        return {}


def source_hash(module: str) -> str:
    """Return a hash of the source text of a module of twins and of all twins it imports."""
    texts: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in texts:
            texts[name] = (HERE / f"{name}.py").read_text()
            waiting += re.findall(r"^from tests\.twins\.(\w+_twin) import", texts[name], re.MULTILINE)
    return hashlib.sha256("\0".join(texts[name] for name in sorted(texts)).encode()).hexdigest()[:16]


def encoded(answer: object) -> Any:
    """Return an answer as a value that JSON can store."""
    if isinstance(answer, mpf):
        return mp.nstr(answer, DIGITS)
    if isinstance(answer, list | tuple):
        return [encoded(part) for part in answer]
    if isinstance(answer, Fraction):
        with mp.workdps(DIGITS + 10):
            return encoded(mpf(answer.numerator) / answer.denominator)
    if isinstance(answer, numbers.Real):
        return answer.item() if hasattr(answer, "item") else answer
    raise TypeError(f"a recorded answer must be numbers and lists of them, got {type(answer).__name__}; return those")


def decoded(answer: Any) -> Any:
    """Return the answer that was encoded, with tuples as lists."""
    if isinstance(answer, str):
        with mp.workdps(DIGITS + 10):
            return mpf(answer)
    return [decoded(part) for part in answer] if isinstance(answer, list) else answer


def agree(answer: Any, other: Any) -> bool:
    """True if two answers agree: to 20 digits in high precision, to 7 as floats, which differ between processors."""
    if isinstance(answer, list | tuple):
        return len(answer) == len(other) and all(map(agree, answer, other))
    if isinstance(answer, mpf):
        return bool(answer == other or abs(answer - other) <= abs(answer) * mpf(10) ** -20)
    return math.isclose(answer, other, rel_tol=1e-7, abs_tol=1e-9)


def _question(name: str, arguments: Sequence[object], options: dict[str, Any]) -> str:
    """Return the call as text, with long arguments hashed."""
    question = ", ".join(
        [*map(_text, arguments), *(f"{option}={_text(options[option])}" for option in sorted(options))]
    )
    if len(question) > LONG:
        question = f"sha256 {hashlib.sha256(question.encode()).hexdigest()[:32]}"
    return f"{name}({question})"


def _text(argument: object) -> str:
    """Return the text of an argument. Different arguments have different texts."""
    if isinstance(argument, mpf):
        return f"mpf({mp.nstr(argument, DIGITS)})"
    if isinstance(argument, list | tuple):
        return f"[{', '.join(map(_text, argument))}]"
    if isinstance(argument, numbers.Real | str) or argument is None:
        return repr(argument.item() if hasattr(argument, "item") else argument)
    raise TypeError(f"a recorded twin must be asked with numbers, text and lists, got {type(argument).__name__}")
