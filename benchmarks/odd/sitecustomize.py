"""Faults inside the processes of a run, loaded by every Python through PYTHONPATH: clock jumps and memory exhaustion.

ODD_PLACE names a folder of flag files. After `jump`, `time.time` of every process jumps by up to a day, back and forth,
twice a second. After `eat`, each worker allocates memory until it is killed. After `fill`, each worker fills the object
store.
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
"""Bytes of the machine's memory that always stay free for other processes."""


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
    blocks = []
    while True:
        if os.path.exists(f"{place}/eat") and len(blocks) < MAX_STEPS and _available() > SPARED_BYTES:
            blocks.append(b"x" * STEP)
        elif os.path.exists(f"{place}/fill") and len(blocks) < MAX_STEPS:
            try:
                import ray

                blocks.append(ray.put(os.urandom(STEP // 10)))
            except Exception as err:  # the object store is full
                print(type(err).__name__, err, file=sys.stderr)
                time.sleep(1)
        time.sleep(0.05)


def _available():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


if os.environ.get("ODD_PLACE"):
    threading.Thread(target=_jumping_clock, args=(os.environ["ODD_PLACE"],), daemon=True).start()
    threading.Thread(target=_watch, args=(os.environ["ODD_PLACE"],), daemon=True).start()
