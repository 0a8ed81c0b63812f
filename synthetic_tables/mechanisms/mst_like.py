"""Synthetic tables from a tree of noisy two-way marginals, in the manner of MST.

A third of rho each is spent on the one-way marginals (Gaussian noise), on the edges of a spanning tree (exponential
mechanism, in turn for each edge) and on the two-way marginals of the edges (Gaussian noise). An edge scores by the L1
distance of its two-way marginal from the product of the noisy one-way marginals, of sensitivity 1. Adding or removing a
record changes one count of each marginal by 1; replacing one changes two.

Source: McKenna, Miklau and Sheldon (2021), "Winning the NIST Contest", arXiv:2108.04978, without compression of domains
and without the graphical model: rows are drawn along the tree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.claims import DEFAULT_DELTA, Claim, Relation, parse_claim
from dpaudit.errors import require
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.ranges import require_delta, require_positive
from dpaudit.registry import register
from dpaudit.synthetic_tables.mechanisms.schema_generator import (
    Releases,
    SchemaGenerator,
    column_cells,
    draw_cells,
    normals,
    schema_words,
    summary_of,
    uniforms,
)
from dpaudit.synthetic_tables.mechanisms.table_summary import TableBatch

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@register("mechanism", "mst-like", source="McKenna et al. (2021), arXiv:2108.04978, simplified")
@dataclass(frozen=True)
class MstLike(SchemaGenerator):
    """Synthetic rows drawn along a tree of noisy two-way marginals; rho-zCDP.

    Attributes:
        rho: Parameter of zero-concentrated differential privacy, > 0 and finite.
        schema: For each column a range of numbers `[0, 100]` or words `[f, m]`; it is public.
        count: Number of synthetic rows that a call as a function releases, >= 1; it is public.
        bins: Largest number of bins of a column of numbers, >= 1.
        relation: "add-remove", or "replace" with more noise.
        measurements: True if the noisy marginals are released too: one-way ones, then those of all pairs of columns, 0
            for pairs that are no edge.
        delta: Delta at which the claim is printed, in (0, 1).
        noise_factor: Factor on the Gaussian noise, > 0; below 1 it breaks the claim.
    """

    rho: float
    schema: Mapping[str, Any]
    count: int = 50
    bins: int = 5
    relation: Relation = Relation.ADD_REMOVE
    measurements: bool = True
    delta: float = DEFAULT_DELTA
    noise_factor: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 < self.rho < math.inf, "rho must be > 0 and finite", rho=self.rho)
        require_delta(self.delta)
        require_positive(self, "bins", "noise_factor")
        relations = (Relation.ADD_REMOVE, Relation.REPLACE)
        require(self.relation in relations, "relation must be add-remove or replace", relation=self.relation)
        self.require_schema()

    def claim(self) -> Claim:
        return parse_claim(f"rho={self.rho!r}, delta={self.delta!r}", self.relation)

    def noise(self, marginals: int) -> float:
        """Return the standard deviation of the counts of `marginals` marginals that share a third of rho."""
        squared_sensitivity = marginals * self._changed_counts
        return math.sqrt(squared_sensitivity / (2 * self.rho / 3)) * self.noise_factor

    @property
    def _changed_counts(self) -> int:
        """Number of counts of a marginal that a record changes by 1."""
        return 2 if self.relation is Relation.REPLACE else 1

    def releases(self, rows: pa.Table, count: int, seeds: Sequence[int]) -> Releases:
        cells = column_cells(summary_of(self).schema, self.bins)
        sizes = [column.count for column in cells.values()]
        codes = [column.codes(rows[name]) for name, column in cells.items()]
        pairs = list(itertools.combinations(range(len(sizes)), 2))
        widths = [sizes[first] * sizes[second] for first, second in pairs]
        noise = normals(seeds, sum(sizes) + sum(widths))
        uniform = uniforms(seeds, max(0, len(sizes) - 1) * len(pairs) + 2 * len(sizes) * count)

        exact = [np.bincount(code, minlength=size + 1)[:size] for code, size in zip(codes, sizes, strict=True)]
        ends = np.cumsum([0, *sizes])
        one_way = [
            counts + self.noise(len(sizes)) * noise[:, ends[place] : ends[place + 1]]
            for place, counts in enumerate(exact)
        ]
        two_way = []
        for first, second in pairs:  # codes beyond the cells are left out
            wide, high = sizes[second] + 1, sizes[first] + 1
            joint = np.bincount(codes[first] * wide + codes[second], minlength=high * wide).reshape(high, wide)
            two_way.append(np.ascontiguousarray(joint[:-1, :-1]).astype(np.int64))
        scores = np.empty((len(seeds), len(pairs)))
        for place, (joint, (first, second)) in enumerate(zip(two_way, pairs, strict=True)):
            scores[:, place] = _distances(joint, one_way[first], one_way[second])
        gumbel_draws = uniform[:, : max(0, len(sizes) - 1) * len(pairs)]
        edges = self._tree(scores, pairs, len(sizes), gumbel_draws)
        starts = ends[-1] + np.cumsum([0, *widths])
        sigma = self.noise(max(1, len(sizes) - 1))
        noisy_pairs = [
            np.where(edges[:, place, None], joint.ravel() + sigma * noise[:, starts[place] : starts[place + 1]], 0.0)
            for place, joint in enumerate(two_way)
        ]
        drawing = uniform[:, gumbel_draws.shape[1] :]
        drawn_codes = _rows_of_trees(one_way, noisy_pairs, pairs, edges, drawing[:, : len(sizes) * count], count)
        within = drawing[:, len(sizes) * count :].reshape(len(seeds), len(sizes), count)
        columns = {
            name: column.values(drawn_codes[:, place], within[:, place])
            for place, (name, column) in enumerate(cells.items())
        }
        released = [*one_way, *noisy_pairs] if self.measurements else [np.empty((len(seeds), 0))]
        return Releases(TableBatch(columns, schema_words(summary_of(self).schema)), np.concatenate(released, axis=1))

    def _tree(
        self, scores: Floats, pairs: Sequence[tuple[int, int]], columns: int, uniform: Floats
    ) -> NDArray[np.bool_]:
        """Return which pairs are edges of the tree of each seed, shape (seeds, pairs).

        Each edge is drawn by the exponential mechanism among the pairs that join two parts of the forest; with epsilon
        it is epsilon^2 / 8-zCDP.
        """
        chosen = np.zeros(scores.shape, np.bool_)
        if not pairs:
            return chosen
        epsilon = math.sqrt(8 * self.rho / 3 / (columns - 1))
        # The largest of scores plus Gumbel noise has the law of the exponential mechanism.
        gumbel = -np.log(-np.log(np.maximum(uniform, np.finfo(np.float64).tiny))).reshape(len(scores), columns - 1, -1)
        utility = epsilon / (2 * self._changed_counts) * scores
        part_of = np.tile(np.arange(columns), (len(scores), 1))
        first, second = np.array(pairs).T
        every = np.arange(len(scores))
        for turn in range(columns - 1):
            joins = part_of[:, first] != part_of[:, second]
            edge = np.where(joins, utility + gumbel[:, turn], -np.inf).argmax(axis=1)
            chosen[every, edge] = True
            part, merged = part_of[every, first[edge]], part_of[every, second[edge]]
            part_of = np.where(part_of == merged[:, None], part[:, None], part_of)
        return chosen


def _distances(joint: Whole, first: Floats, second: Floats) -> Floats:
    """Return the L1 distance of a two-way marginal from the product of noisy one-way marginals, for each seed."""
    first, second = np.maximum(first, 0), np.maximum(second, 0)
    shares = second / np.maximum(second.sum(axis=1, keepdims=True), 1.0)
    return np.asarray(np.abs(joint - first[:, :, None] * shares[:, None]).sum(axis=(1, 2)))


def _rows_of_trees(
    one_way: Sequence[Floats],
    two_way: Sequence[Floats],
    pairs: Sequence[tuple[int, int]],
    edges: NDArray[np.bool_],
    uniform: Floats,
    count: int,
) -> Whole:
    """Return codes drawn along the tree of each seed from the first column on, shape (seeds, columns, count)."""
    seeds, columns = len(edges), len(one_way)
    uniform = uniform.reshape(seeds, columns, count)
    codes = np.zeros((seeds, columns, count), np.int64)
    codes[:, 0] = draw_cells(one_way[0], uniform[:, 0])
    visited = np.zeros((seeds, columns), np.bool_)
    visited[:, 0] = True
    for _ in range(columns - 1):
        waiting = np.ones(seeds, np.bool_)  # each tree grows by one column in a turn
        for place, (first, second) in enumerate(pairs):
            joint = two_way[place].reshape(seeds, one_way[first].shape[1], one_way[second].shape[1])
            for parent, child, table in ((first, second, joint), (second, first, joint.transpose(0, 2, 1))):
                grows = np.flatnonzero(waiting & edges[:, place] & visited[:, parent] & ~visited[:, child])
                if not len(grows):
                    continue
                weights = table[grows[:, None], codes[grows, parent]]
                codes[grows, child] = draw_cells(weights, uniform[grows, child])
                visited[grows, child] = True
                waiting[grows] = False
    return codes
