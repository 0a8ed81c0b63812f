"""The best adversary against labels released by a known mechanism."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.one_run.answers import ReleaseView
from dpaudit.errors import SpecError, require
from dpaudit.registry import register


@runtime_checkable
class KnownChannel(Protocol):
    """A label mechanism that states its law."""

    def transition(self, classes: int) -> NDArray[np.float64]:
        """Probability of each released label (columns) given each true one (rows), shape (K, K)."""
        ...


@register("attack", "likelihood-ratio", source="Neyman-Pearson, for Algorithm 2 of arXiv:2511.14084; ours")
@dataclass(frozen=True)
class LikelihoodRatio:
    """How much likelier the released label is if the shown one was trained on than if the proxy drew it.

    Given features x and shown label v, the released label z has probability T[v, z] in world 1 and
    sum_y M'(x)[y] T[y, z] in world 0: the log of their ratio orders the canaries best. Where z differs from v it speaks
    for world 0 as strongly as z = v speaks for world 1; the published score leaves those canaries aside.

    Attributes:
        law: T, the probability of each released label (columns) given each true one (rows); filled in from the
            mechanism's `transition(classes)`.
    """

    law: tuple[tuple[float, ...], ...] = ()
    view: ClassVar[type[ReleaseView]] = ReleaseView

    def for_mechanism(self, mechanism: Any, classes: int) -> LikelihoodRatio:
        """The attack on one mechanism: Algorithm 1's adversary has access to it.

        Raises: SpecError when the mechanism does not state its law.
        """
        if not isinstance(mechanism, KnownChannel):
            raise SpecError(
                "attack likelihood-ratio needs a label mechanism that states its law, with a method "
                f"`transition(classes)`; {type(mechanism).__name__} has none: use attack label-inference"
            )
        return replace(self, law=tuple(map(tuple, mechanism.transition(classes).tolist())))

    def score(self, view: ReleaseView) -> NDArray[np.float64]:
        """log T[v, z] - log sum_y M'(x)[y] T[y, z]; shape (m,), positive = the training label."""
        law = np.asarray(self.law)
        require(
            law.shape == (view.release.classes,) * 2, "the mechanism's law must be of shape (K, K)", shape=law.shape
        )
        released = view.release.labels
        world_0 = np.einsum("ij,ij->i", view.reference, law.T[released])
        scores: NDArray[np.float64] = np.log(law[view.labels, released]) - np.log(world_0)
        return scores
