"""Image augmentation with torch operations alone.

Uniform draws for each image decide its changes. So one call augments the batches of many models, each with its own
randomness. Images are float32 of shape (n, channels, height, width) with values in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from dpaudit.errors import require

GREY = 0.5
LEVELS = 255
MAGNITUDE = 10.0  # maximum magnitude of RandAugment, in [0, 10]; each image draws a magnitude below it


class Augment:
    """Flips, crops with padding, and cutout (see `Recipe.augment`); uses `draws` uniforms for each image."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self._flip, self._crop, self._cutout = ("flip" in name, "crop" in name, "cutout" in name)
        self.draws = self._flip + 2 * self._crop + 2 * self._cutout
        message = "augmentation takes images of shape (channels, height, width)"
        require(not self.draws or len(shape) == 3, message, shape=shape)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return the augmented images; `draws` are uniform on [0, 1), shape (n, draws)."""
        columns = iter(draws.unbind(1))
        if self._flip:
            images = flip(images, next(columns))
        if self._crop:
            images = crop(images, next(columns), next(columns), padding=max(1, images.shape[2] // 8))
        if self._cutout:
            images = cutout(images, next(columns), next(columns), side=max(1, images.shape[2] // 4))
        return images


def flip(images: Tensor, chance: Tensor) -> Tensor:
    """Flip images horizontally where `chance` < 0.5."""
    return torch.where(_per_image(chance < 0.5), images.flip(3), images)


def crop(images: Tensor, down: Tensor, right: Tensor, *, padding: int) -> Tensor:
    """Shift images by up to `padding` pixels in each direction, with zeros at the border."""
    height, width = images.shape[2:]
    padded = functional.pad(images, [padding] * 4)
    rows = (down * (2 * padding + 1)).long()[:, None] + torch.arange(height, device=images.device)
    columns = (right * (2 * padding + 1)).long()[:, None] + torch.arange(width, device=images.device)
    image = torch.arange(len(images), device=images.device)[:, None, None]
    # Indexing (image, :, row, column) puts the channels last.
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def cutout(images: Tensor, down: Tensor, right: Tensor, *, side: int) -> Tensor:
    """Paint a grey square of `side` pixels around a random pixel, cut at the border (DeVries and Taylor, 2017)."""
    inside = (
        _in_square(down, images.shape[2], side)[:, None, :, None]
        & _in_square(right, images.shape[3], side)[:, None, None, :]
    )
    return torch.where(inside, GREY, images)


def _in_square(draw: Tensor, length: int, side: int) -> Tensor:
    start = (draw * length).long()[:, None] - side // 2
    places = torch.arange(length, device=draw.device)
    return (places >= start) & (places < start + side)


class RandAugment:
    """FixMatch's strong augmentation: two random operations of random magnitude, then cutout.

    Source: Cubuk et al. (2020).
    """

    draws = 3 * 2 + 2  # uniforms for each image

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return the augmented images; `draws` are uniform on [0, 1), shape (n, draws)."""
        for turn in range(2):
            which, share, side = draws[:, 3 * turn : 3 * turn + 3].unbind(1)
            strength, sign = share * MAGNITUDE / 10, torch.where(side < 0.5, -1.0, 1.0)
            changed, chosen = images.clone(), (which * len(OPERATIONS)).long()
            for number, operation in enumerate(OPERATIONS.values()):
                selected = (chosen == number).nonzero()[:, 0]
                if len(selected):
                    changed[selected] = operation(images[selected], strength[selected], sign[selected])
            images = changed
        return cutout(images, draws[:, -2], draws[:, -1], side=max(1, images.shape[2] // 2))


def _autocontrast(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Stretch each channel to fill [0, 1]; constant channels stay unchanged."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    spread = high - low
    return torch.where(spread > 1 / LEVELS, (images - low) / spread.clamp(min=1 / LEVELS), images)


def _sharpness(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Blend images with their smoothed versions, or away from them; the border stays unchanged."""
    channels = images.shape[1]
    weights = torch.ones(3, 3, device=images.device)
    weights[1, 1] = 5
    smooth = images.clone()
    kernel = (weights / 13).expand(channels, 1, 3, 3)
    smooth[:, :, 1:-1, 1:-1] = functional.conv2d(images, kernel, groups=channels)
    return _blend(smooth, images, strength, sign)


def _equalize(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Equalise the histogram of each channel."""
    flat = (images * LEVELS).round().clamp(0, LEVELS).long().flatten(2)
    counts = torch.zeros(*flat.shape[:2], LEVELS + 1, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat, dtype=counts.dtype))
    below = counts.cumsum(2)
    first = below.gather(2, flat.amin(2, keepdim=True))  # pixels at the darkest level stay black
    spread = (below - first).clamp(min=0) / (flat.shape[2] - first).clamp(min=1)
    return torch.where(first[..., None] < flat.shape[2], spread.gather(2, flat).view_as(images), images)


def _posterize(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Reduce channels to between 8 and 4 bits."""
    step = 2.0 ** _per_image((strength * 4).round())
    return ((images * LEVELS).round() / step).floor() * step / LEVELS


def _rotate(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Rotate images by up to 30 degrees."""
    angle = strength * sign * math.pi / 6
    return _warp(images, [angle.cos(), -angle.sin(), 0], [angle.sin(), angle.cos(), 0])


OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "identity": lambda images, strength, sign: images,
    "autocontrast": _autocontrast,
    # Blend with black, the grey version or the mean grey level, or away from them
    "brightness": lambda images, strength, sign: _blend(torch.zeros_like(images), images, strength, sign),
    "color": lambda images, strength, sign: _blend(_grey(images).expand_as(images), images, strength, sign),
    "contrast": lambda images, strength, sign: _blend(
        _grey(images).mean((2, 3), keepdim=True).expand_as(images), images, strength, sign
    ),
    "equalize": _equalize,
    "posterize": _posterize,
    "rotate": _rotate,
    "sharpness": _sharpness,
    # By up to 0.3 along rows or columns
    "shear-x": lambda images, strength, sign: _warp(images, [1, 0.3 * strength * sign, 0], [0, 1, 0]),
    "shear-y": lambda images, strength, sign: _warp(images, [1, 0, 0], [0.3 * strength * sign, 1, 0]),
    # Invert values at or above a threshold
    "solarize": lambda images, strength, sign: torch.where(images >= _per_image(1 - strength), 1 - images, images),
    # By up to 0.3 of the side; the grid spans [-1, 1], so 0.6 is 0.3 of it
    "translate-x": lambda images, strength, sign: _warp(images, [1, 0, 0.6 * strength * sign], [0, 1, 0]),
    "translate-y": lambda images, strength, sign: _warp(images, [1, 0, 0], [0, 1, 0.6 * strength * sign]),
}
"""Operations by name, called with images (n, c, h, w), strength (n,) in [0, 1] and sign (n,), -1 or 1."""


def _per_image(values: Tensor) -> Tensor:
    """Reshape (n,) to (n, 1, 1, 1)."""
    return values[:, None, None, None]


def _grey(images: Tensor) -> Tensor:
    """Return luma for three channels, else the mean of the channels; shape (n, 1, h, w)."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    luma = torch.tensor([0.299, 0.587, 0.114], device=images.device)
    return (images * luma[:, None, None]).sum(1, keepdim=True)


def _blend(other: Tensor, images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Return other + factor (image - other), with factor 0.1 or 1.9 at full strength."""
    factor = _per_image(1 + 0.9 * strength * sign)
    return (other + factor * (images - other)).clamp(0, 1)


def _warp(images: Tensor, across: list[Tensor | float], down: list[Tensor | float]) -> Tensor:
    """Apply the affine map with rows `across` and `down`, with grey at the border."""
    count, device = len(images), images.device
    columns = [[torch.as_tensor(value, dtype=torch.float32, device=device) for value in row] for row in (across, down)]
    rows = [torch.stack([value.expand(count) for value in row], -1) for row in columns]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    moved = functional.grid_sample(images - GREY, grid, mode="nearest", align_corners=False)
    return moved + GREY
