"""Proxies that are no guess: they answer with the law the labels were drawn from."""

from __future__ import annotations


class KnownLaw:
    """A proxy that is the truth itself: derive from it to say so, and the audit takes nothing on trust."""
