"""A differentially private random forest: random trees that release the most frequent class of each leaf with noise.

Splits do not depend on data: each node draws a feature and a threshold within its box uniformly. Each record belongs to
one tree, by a fixed hash of its features, so adding or removing a record does not move others. A leaf answers by
permute-and-flip, the largest of epsilon times a class's count plus exponential noise, or by the exponential mechanism,
with Gumbel noise instead. Both are tight under add-remove. A changed label changes two counts and costs up to twice as
much. An empty leaf answers at random, since leaving it out would reveal that it is empty.

Source: Holohan et al. (2019), diffprivlib, `RandomForestClassifier`; Fletcher and Islam (2017); McKenna and Sheldon
(2020), "Permute-and-Flip"; as the largest of noisy counts Ding et al. (2021), arXiv:2105.07260; McSherry and Talwar
(2007) for the exponential mechanism, whose factor 2 is not needed since a record changes one count in one direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.compiling import compiled
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.learners.gaussian_naive_bayes import FlatFeaturesLearner, flat_features
from dpaudit.mechanisms.ranges import require_at_least, require_finite_epsilon
from dpaudit.registry import register

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Selection = Literal["permute-and-flip", "exponential"]


@register("mechanism", "random-forest", source="Holohan et al. (2019), diffprivlib; McKenna and Sheldon (2020)")
@dataclass(frozen=True)
class PrivateForest(FlatFeaturesLearner):
    """Trees with random splits on disjoint records; each leaf releases its most frequent class with noise.

    Attributes:
        epsilon: Privacy loss in nats under adding or removing a record, > 0.
        trees: Number of trees, >= 1.
        depth: Depth of each tree, in 1 .. 16.
        lower: Lower end of the range to which every feature is clipped.
        upper: Upper end of that range.
        selection: How a leaf selects its class: "permute-and-flip", as in diffprivlib, or "exponential".
    """

    epsilon: float
    trees: int = 10
    depth: int = 5
    lower: float = 0.0
    upper: float = 1.0
    selection: Selection = "permute-and-flip"

    def __post_init__(self) -> None:
        require_finite_epsilon(self.epsilon)
        require_at_least(1, self, "trees")
        require(1 <= self.depth <= 16, "depth must be in 1 .. 16", depth=self.depth)
        require(self.lower < self.upper, "lower must be below upper", lower=self.lower, upper=self.upper)
        require(
            self.selection in get_args(Selection),
            "selection must be permute-and-flip or exponential",
            selection=self.selection,
        )

    def claim(self) -> Claim:
        """Claim pure epsilon under adding or removing one record."""
        return Claim(self.epsilon, relation=Relation.ADD_REMOVE)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> ForestModel:
        rng, features = np.random.default_rng(seed), self.clipped(train.features)
        inner, leaves = 2**self.depth - 1, 2**self.depth
        feature = rng.integers(features.shape[1], size=(self.trees, inner))
        share = rng.random((self.trees, inner))
        threshold = np.empty((self.trees, inner))
        for tree in range(self.trees):
            self._thresholds(feature[tree], share[tree], threshold[tree], features.shape[1])
        model = ForestModel(feature, threshold, np.empty((self.trees, leaves), np.int64), train.classes, self)
        counts = np.zeros((self.trees, leaves, train.classes))
        tree_of = self.tree_of(features)
        for tree in range(self.trees):
            in_tree = tree_of == tree
            np.add.at(counts[tree], (model.leaves(features[in_tree], tree), train.labels[in_tree]), 1)
        model.answers[:] = self.answers(counts, rng)
        return model

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> Floats:
        """Return each tree's one-hot answer at the first point, shape (count, trees K).

        Only the leaf of that point is built: `depth` random splits, on the point's side of each.
        """
        rng = np.random.default_rng(seed)
        features, point = self.clipped(train.features), self.clipped(points[:1])[0]
        tree_of = self.tree_of(features)
        counts = np.empty((count, self.trees, train.classes))
        for tree in range(self.trees):
            in_tree = tree_of == tree
            columns, labels = np.ascontiguousarray(features[in_tree].T), train.labels[in_tree]
            split, low, high = self._boxes(point, count, rng)
            counts[:, tree] = leaf_counts(columns, labels, train.classes, split, low, high, self.upper)
        answers = self.answers(counts, rng)
        one_hot: Floats = (answers[..., None] == np.arange(train.classes)).astype(np.float64)
        return one_hot.reshape(count, self.trees * train.classes)

    def answers(self, counts: Floats, rng: np.random.Generator) -> Ints:
        """Release a class for each leaf by `selection`, from counts of shape (..., K)."""
        draw = rng.exponential if self.selection == "permute-and-flip" else rng.gumbel
        noisy: Ints = (self.epsilon * counts + draw(size=counts.shape)).argmax(-1)
        return noisy

    def clipped(self, features: Features) -> Floats:
        return np.clip(flat_features(features), self.lower, self.upper)

    def tree_of(self, features: Floats) -> Ints:
        """Return the tree of each record, by a fixed hash of its features; shape (n,)."""
        bits = np.ascontiguousarray(features).view(np.uint64)
        mixed = np.full(len(features), 0x9E3779B97F4A7C15, np.uint64)
        for column in bits.T:
            mixed = (mixed ^ column) * np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(29)
        return (mixed % np.uint64(self.trees)).astype(np.int64)

    def _thresholds(self, feature: Ints, share: Floats, threshold: Floats, d: int) -> None:
        """Fill in the threshold of each node within its box; the children of node i are 2 i + 1 and 2 i + 2."""
        low, high = {0: np.full(d, self.lower)}, {0: np.full(d, self.upper)}
        for node, column in enumerate(feature):
            box = low.pop(node), high.pop(node)
            threshold[node] = box[0][column] + share[node] * (box[1][column] - box[0][column])
            for child, side in ((2 * node + 1, 1), (2 * node + 2, 0)):
                low[child], high[child] = box[0].copy(), box[1].copy()
                (high if side else low)[child][column] = threshold[node]

    def _boxes(self, point: Floats, size: int, rng: np.random.Generator) -> tuple[Ints, Floats, Floats]:
        """Draw the leaf of `point` in `size` trees: features of its splits and final limits; shape (size, depth)."""
        split = rng.integers(len(point), size=(size, self.depth))
        low, high = np.full((size, self.depth), self.lower), np.full((size, self.depth), self.upper)
        for step in range(self.depth):
            column = split[:, step]
            # Limits after earlier splits of the same feature.
            is_same_feature = split[:, :step] == column[:, None]
            node_low = np.where(is_same_feature, low[:, :step], self.lower).max(1, initial=self.lower)
            node_high = np.where(is_same_feature, high[:, :step], self.upper).min(1, initial=self.upper)
            threshold = node_low + rng.random(size) * (node_high - node_low)
            is_below = point[column] < threshold
            low[:, step] = np.where(is_below, node_low, threshold)
            high[:, step] = np.where(is_below, threshold, node_high)
        return split, low, high


@compiled()
def leaf_counts(
    columns: Floats, labels: Ints, classes: int, split: Ints, low: Floats, high: Floats, end: float
) -> Floats:
    """Return the number of records of each class in each leaf, shape (leaves, K).

    `columns` has the shape (d, n).
    """
    leaves, depth = split.shape
    counts = np.zeros((leaves, classes))
    inside = np.empty(columns.shape[1], np.int64)
    for leaf in range(leaves):
        remaining = columns.shape[1]
        for record in range(remaining):
            inside[record] = record
        for step in range(depth):
            values, lower, upper = columns[split[leaf, step]], low[leaf, step], high[leaf, step]
            counted = 0
            for place in range(remaining):
                record = inside[place]
                value = values[record]
                inside[counted] = record
                counted += value >= lower and (value < upper or upper == end)
            remaining = counted
        for place in range(remaining):
            counts[leaf, labels[inside[place]]] += 1
    return counts


@dataclass(frozen=True, eq=False)
class ForestModel:
    """A released forest."""

    feature: Ints  # feature of each node, shape (trees, 2^depth - 1); the children of i are 2 i + 1 (below) and 2 i + 2
    threshold: Floats  # shape as `feature`
    answers: Ints  # class of each leaf, shape (trees, 2^depth)
    classes: int  # K
    learner: PrivateForest

    def leaves(self, features: Floats, tree: int) -> Ints:
        node = np.zeros(len(features), np.int64)
        for _ in range(self.learner.depth):
            above = features[np.arange(len(features)), self.feature[tree, node]] >= self.threshold[tree, node]
            node = 2 * node + 1 + above
        leaf: Ints = node - (2**self.learner.depth - 1)
        return leaf

    def votes(self, features: Features) -> Ints:
        flat = self.learner.clipped(features)
        return np.stack([self.answers[tree, self.leaves(flat, tree)] for tree in range(len(self.answers))], axis=1)

    def probabilities(self, features: Features) -> Floats:
        votes: Floats = (self.votes(features)[..., None] == np.arange(self.classes)).mean(1)
        return votes
