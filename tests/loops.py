"""Checks of many cases in one test: each case runs, and the failed ones are listed by name.

A parametrised test costs every process of the tests its collection; a loop costs that once.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator


class Cases:
    """Collects the failures of a loop and raises them together where the loop ends.

    with Cases() as cases:
        for page in pages:
            with cases.case(page.name):
                assert links_lead_somewhere(page)
    """

    def __init__(self) -> None:
        self._failures: dict[str, str] = {}
        self._number = 0

    def __enter__(self) -> Cases:
        return self

    @contextlib.contextmanager
    def case(self, *name: object) -> Iterator[None]:
        """Run one case: an exception is recorded under its name, and the loop continues."""
        self._number += 1
        try:
            yield
        except Exception as err:
            self._note(name, err)
        except BaseException as err:  # `pytest.fail` and `pytest.raises` end with one of pytest's own
            if type(err).__name__ != "Failed":
                raise
            self._note(name, err)

    def _note(self, parts: tuple[object, ...], err: BaseException) -> None:
        name = " ".join(map(_words, parts))
        places = [frame for frame in traceback.extract_tb(err.__traceback__) if frame.filename != __file__]
        place = f"{places[0].filename}:{places[0].lineno}: " if places else ""
        key = name if name not in self._failures else f"{name} (case {self._number})"
        self._failures[key] = f"{place}{type(err).__name__}: {err}"

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            assert self._number, "no case ran"
            lines = [f"{name}\n    {failure}" for name, failure in self._failures.items()]
            if lines:
                raise AssertionError(f"{len(lines)} of {self._number} cases failed:\n" + "\n".join(lines))


def _words(part: object) -> str:
    """Return the name of a case; some cases are objects that cannot be printed."""
    try:
        return str(part)[:200]
    except Exception:
        return f"an object of {type(part).__name__}"
