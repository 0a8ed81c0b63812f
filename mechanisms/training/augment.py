"""Image augmentation with torch operations alone.

Each image is changed as its own uniform draws say, so a batch of many models is changed at once and every model still
has its own randomness.
"""

from __future__ import annotations

from torch import Tensor

from dpaudit.errors import require


class Augment:
    """Flips, crops with padding and cuts out, by name (see `Network.augment`).

    Attributes:
        draws: Uniforms it takes for each image.
    """

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self._flip, self._crop, self._cutout = ("flip" in name, "crop" in name, "cutout" in name)
        self.draws = self._flip + 2 * self._crop + 2 * self._cutout
        require(
            not self.draws or len(shape) == 3,
            "augmentation takes images of shape (channels, height, width)",
            shape=shape,
        )

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        raise NotImplementedError
