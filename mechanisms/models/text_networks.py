"""Networks of text to train from scratch, one registered name for each architecture.

They take rows of word numbers, as the text data sets give them, in stacks and by DP-SGD like any other network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpaudit.errors import require
from dpaudit.mechanisms.models.networks import Network
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dpaudit.mechanisms.training.compute.kernels import BatchedMlp


@dataclass(frozen=True, kw_only=True)
class TextNetwork(Network):
    """What text networks share.

    Attributes:
        vocabulary: Number of words, padding among them, >= 2; at least that of the data.
        width: Of a word's vector, >= 1.
    """

    vocabulary: int = 4096
    width: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.vocabulary >= 2, "vocabulary must be >= 2", vocabulary=self.vocabulary)
        require(self.width >= 1, "width must be >= 1", width=self.width)
        plain = not self.standardise and not self.mixup and self.augment == "none"
        require(plain, "word numbers cannot be scaled, mixed or augmented", do="leave out standardise, mixup, augment")

    def check(self, features: Tensor) -> None:
        """Word numbers, whole and in 0 .. vocabulary - 1."""
        low, high = (float(end) for end in features.aminmax()) if features.numel() else (0.0, 0.0)
        require(
            low >= 0 and high < self.vocabulary and bool((features == features.floor()).all()),
            f"word numbers must be whole and in 0..{self.vocabulary - 1}",
            do="give data and model the same vocabulary",
            lowest=low,
            highest=high,
        )


@register("model", "bag-of-embeddings", source="Joulin et al. (2017), arXiv:1607.01759, without n-grams")
@dataclass(frozen=True, kw_only=True)
class BagOfEmbeddings(TextNetwork):
    """A linear classifier on the mean of the words' vectors, trained from scratch: stacked, fast, DP-SGD too."""

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models import text_architectures

        return text_architectures.BagOfEmbeddings(shape, classes, vocabulary=self.vocabulary, width=self.width)

    def batched_kernel(self, module: nn.Module) -> type[BatchedMlp] | None:
        """The one of bags of embeddings."""
        from dpaudit.mechanisms.models.text_architectures import BatchedBag

        return BatchedBag


@register("model", "small-transformer", source="Vaswani et al. (2017), arXiv:1706.03762; normalisation first")
@dataclass(frozen=True, kw_only=True)
class SmallTransformer(TextNetwork):
    """A small transformer encoder on word numbers, trained from scratch.

    Attributes:
        width: Of a word's vector, a multiple of `heads`.
        heads: Of the attention, >= 1.
        layers: Encoder blocks, >= 1.
    """

    width: int = 32
    heads: int = 2
    layers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.heads >= 1 and self.layers >= 1, "heads and layers must be >= 1", heads=self.heads)
        require(self.width % self.heads == 0, "width must be a multiple of heads", width=self.width, heads=self.heads)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models import text_architectures

        return text_architectures.SmallTransformer(
            shape, classes, vocabulary=self.vocabulary, width=self.width, heads=self.heads, layers=self.layers
        )
