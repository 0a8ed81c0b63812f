"""Loaded by every Python of a run with a fault, by PYTHONPATH: a clock that jumps, a worker that takes all it can get.

ODD_PLACE names a folder: once it holds `jump`, `time.time` of every process jumps by up to a day, back and forth, twice
a second; with `eat`, each worker takes memory until it is ended; with `fill`, each worker fills the object store.
"""

import os
import random
import sys
import threading
import time
from pathlib import Path

DAY_S = 86_400
STEP = 100_000_000
MAX_STEPS = 30
SPARED_BYTES = 5_000_000_000
"""Of the machine's memory, so much is left to others whatever happens."""


def _jumping_clock(place):
    true_time, rng = time.time, random.Random()

    while not os.path.exists(f"{place}/jump"):
        time.sleep(0.5)

    def jumped_s():
        rng.seed(int(time.monotonic() * 2))
        return rng.uniform(-DAY_S, DAY_S)

    time.time = lambda: true_time() + jumped_s()
    time.time_ns = lambda: int(time.time() * 1e9)


def _watch(place):
    while b"ray::Worker" not in Path("/proc/self/cmdline").read_bytes():
        time.sleep(0.5)
    held = []
    while True:
        if os.path.exists(f"{place}/eat") and len(held) < MAX_STEPS and _available() > SPARED_BYTES:
            held.append(b"x" * STEP)
        elif os.path.exists(f"{place}/fill") and len(held) < MAX_STEPS:
            try:
                import ray

                held.append(ray.put(os.urandom(STEP // 10)))
            except Exception as err:  # it is full
                print(type(err).__name__, err, file=sys.stderr)
                time.sleep(1)
        time.sleep(0.05)


def _available():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


if os.environ.get("ODD_PLACE"):
    threading.Thread(target=_jumping_clock, args=(os.environ["ODD_PLACE"],), daemon=True).start()
    threading.Thread(target=_watch, args=(os.environ["ODD_PLACE"],), daemon=True).start()
