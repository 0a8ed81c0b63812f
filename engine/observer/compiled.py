"""Steps inside functions that JAX compiles: their gradients go to the audit on the host, and return with canaries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from dpaudit.engine.observer.leaves import leaves, like


def is_traced(values: Any) -> bool:
    """True if JAX is compiling the function that calls with these values."""
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(leaf, jax.core.Tracer) for leaf in leaves(values))


def joined(join: Callable[[Any], Any], gradients: Any) -> Any:
    """Return the gradients that `join` returns for the arrays of each run of the compiled function."""
    import jax
    from jax.experimental import io_callback

    whole = leaves(gradients)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in whole]
    changed = io_callback(lambda *arrays: join([np.asarray(each) for each in arrays]), shapes, *whole, ordered=True)
    return like(gradients, list(changed))


def observed(observe: Callable[[Any], None], noisy: Any) -> None:
    """Call `observe` with the arrays of each run of the compiled function."""
    from jax.experimental import io_callback

    io_callback(lambda *arrays: observe([np.asarray(each) for each in arrays]), None, *leaves(noisy), ordered=True)


def wait() -> None:
    """Wait until all started steps of compiled functions were observed."""
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.effects_barrier()
