"""A mechanism whose code misuses its process; tests copy the file into a working folder."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass

import numpy as np

from dpaudit import Claim


@dataclass(frozen=True)
class Misbehaving:
    """A mechanism that releases labels unchanged and runs the functions named in `do`."""

    do: str = ""
    epsilon: float = 1.0

    def claim(self) -> Claim:
        return Claim(self.epsilon)

    def release(self, labels, *, classes, rng):
        for function in self.do.split():
            globals()[function]()
        return labels


def detaches():
    subprocess.Popen(["sleep", "300"], start_new_session=True)


def helps():
    subprocess.Popen(["sleep", "301"])


def forks_twice():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            os.environ.clear()
            time.sleep(302)
        os._exit(0)


def prints():
    print("words from print")
    os.write(1, b"words from os.write\n" * 1_000_000)
    ctypes.CDLL(None).printf(b"words from C\n")
    print("words to standard error", file=sys.stderr)


def changes():
    sys.setrecursionlimit(150)
    sys.path.insert(0, "/nowhere")
    os.chdir("/")
    os.umask(0)
    os.environ["MISBEHAVED"] = "yes"
    json.dumps = lambda *_, **__: "{}"
    np.random.default_rng = lambda *_: None
    np.seterr(all="raise")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    warnings.simplefilter("error")


def closes():
    os.close(1)
    os.close(2)


def closes_all():
    os.closerange(3, 4096)


def stays():
    threading.Thread(target=time.sleep, args=(600,), name="stays").start()
    atexit.register(time.sleep, 600)


def dies():
    os._exit(7)
