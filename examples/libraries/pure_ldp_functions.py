"""pure-ldp, tested with 1.2.0. Rows: "array" of values 1 to 4, of users; the answer is the last report."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from pure_ldp.core import generate_hash_funcs
from pure_ldp.frequency_oracles.apple_cms import CMSClient
from pure_ldp.frequency_oracles.direct_encoding import DEClient
from pure_ldp.frequency_oracles.hadamard_mechanism import HadamardMechClient
from pure_ldp.frequency_oracles.histogram_encoding import HEClient
from pure_ldp.frequency_oracles.local_hashing import LHClient
from pure_ldp.frequency_oracles.rappor import RAPPORClient, RAPPORServer
from pure_ldp.frequency_oracles.unary_encoding import UEClient


def _values(rows: Any, low: int, high: int) -> list[int]:
    """The first column, as whole numbers of the domain."""
    return [int(value) for value in np.clip(np.nan_to_num(rows[:, 0]), low, high)]


def _report(client: Any, rows: Any) -> Any:
    return client.privatise(_values(rows, 1, 4)[-1]) if len(rows) else None


def direct_encoding(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    return _report(DEClient(epsilon, 4), rows)


def unary_encoding(rows: Any, rng: Any, epsilon: float = 1.0, optimised: bool = True) -> Any:
    return _report(UEClient(epsilon, 4, use_oue=optimised), rows)


def histogram_encoding(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    return _report(HEClient(epsilon, 4), rows)


def local_hashing(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    """The report, with the hashes of all values by its seed in place of the seed, which is one of 2^63."""
    client = LHClient(epsilon, 4, use_olh=True)
    reply = _report(client, rows)
    if reply is None:
        return None
    client.p, client.q = 1.0, 0.0
    return [reply[0], *(client._perturb(value, reply[1]) for value in range(1, 5))]


def hadamard(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    reply = _report(HadamardMechClient(epsilon, 4, 1), rows)
    return None if reply is None else list(reply)


def count_mean_sketch(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    return _report(CMSClient(epsilon, generate_hash_funcs(2, 4), 4), rows)


def rappor(rows: Any, rng: Any, f: float = 0.5, bits: int = 6) -> Any:
    """A report with one hash function and one cohort. `RAPPORServer.epsilon` states its epsilon: 2.197 if f = 0.5."""
    random.seed(0)  # the hash functions, which are public
    server = RAPPORServer(f, bits, 1, 4, num_of_cohorts=1)
    random.seed(int(rng.integers(2**31)))
    return _report(RAPPORClient(f, bits, server.get_hash_funcs(), num_of_cohorts=1), rows)
