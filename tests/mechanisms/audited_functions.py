"""Functions on rows, good and bad, as users write them; workers call them in Pythons that may lack all libraries."""

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
import warnings


def noisy_sum(rows, rng, scale=1.0):
    """Sum the column `x` of rows in any form, with noise from all three generators."""
    if hasattr(rows, "column"):  # arrow
        values = rows.column("x").to_pylist()
    elif hasattr(rows, "dtypes") or isinstance(rows, dict):
        values = list(rows["x"])
    elif isinstance(rows, list) and rows and isinstance(rows[0], dict):
        values = [row["x"] for row in rows]
    else:
        values = [each[0] if hasattr(each, "__len__") else each for each in rows]
    present = [float(value) for value in values if value is not None and value == value]
    noise = rng.random() + random.random()
    if "numpy" in sys.modules:
        noise += sys.modules["numpy"].random.random()
    return {"sum": sum(present) + scale * noise, "rows": len(values), "form": type(rows).__name__}


async def later(rows, rng):
    """Return, from a coroutine, a result with a private attribute."""

    class Total:
        def __init__(self, total):
            self._total = total

    return [len(rows), Total(sum(rows))]


def first(rows, rng):
    """Return the first value and overwrite it."""
    if hasattr(rows, "iloc"):
        value = float(rows.iloc[0, 0])
        rows.iloc[0, 0] = value + 1
    elif isinstance(rows[0], dict):
        value = rows[0]["x"]
        rows[0]["x"] = value + 1
    elif hasattr(rows, "shape"):
        value = float(rows[0, 0])
        rows[0, 0] = value + 1
    else:
        value = rows[0]
        rows[0] = value + 1
    return value


def grows(rows, rng, words=()):
    words.append("more")
    return len(words)


def as_text(rows, rng):
    """Return the `repr` of the rows."""
    return repr(rows)


def sometimes(rows, rng, how):
    """Fail in the way `how` for half of all seeds."""
    if rng.random() < 0.5:
        _FAILURES[how]()
    return 1.5


def fails(how):
    """True for such a seed, in a worker without NumPy."""
    return random.Random(how).random() < 0.5


def _prints_without_end():
    while True:
        os.write(1, b"x" * 1000)


def _writes_everywhere():
    for number in range(3, 300):
        with contextlib.suppress(OSError):
            os.write(number, b"garbage " * 100)


def _interrupts():
    raise KeyboardInterrupt


def _takes_memory():
    return len(bytearray(1 << 30))


def _starts_and_dies():
    """Leave a child process running."""
    child = subprocess.Popen(["sleep", "1000"])
    print(child.pid, flush=True)
    os._exit(5)


def _comes_back_twice():
    os.fork()


def _speaks_and_dies():
    print("no more disk", file=sys.stderr, flush=True)
    os._exit(3)


_FAILURES = {
    "exit": _speaks_and_dies,
    "null": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleep": lambda: time.sleep(1000),
    "print": _prints_without_end,
    "garble": _writes_everywhere,
    "close": lambda: os.closerange(3, 1000),
    "system": lambda: sys.exit("as 17 asked"),
    "interrupt": _interrupts,
    "memory": _takes_memory,
    "child": _starts_and_dies,
    "fork": _comes_back_twice,
    "recursion": lambda: _forever(),
}


def _forever():
    return _forever()


def prints(rows, rng, megabytes=100):
    for _ in range(megabytes):
        print("y" * (1 << 20))
    return megabytes


def warns(rows, rng):
    for _ in range(3):
        warnings.warn("of 7 rows", UserWarning, stacklevel=1)
    warnings.warn("for nobody", ResourceWarning, stacklevel=1)
    warnings.warn("bounds (1.5) are from the data", RuntimeWarning, stacklevel=1)


def process(rows, rng, file):
    """Write the process id to a file and never return."""
    with open(file, "w") as written:
        written.write(str(os.getpid()))
    time.sleep(1000)


NO_FUNCTION = 7


def prints_its_sum(rows, rng):
    print(sum(rows))
    return 3
