"""Converts parameters to numbers: encoding of a tree of parameters as a flat table, snapping to legal values,
and decoding (spec/tuning#parameters, facts/tuning#ml, facts/tuning#vertex).

A point is a row with one **code** per node of the tree. The code of a number is its position in [0, 1] on its
scale. The code of a category is its index. The code of an inactive node is NaN. A **genotype** has no NaN: it
also contains codes of inactive nodes, so that a search can change a parent parameter and find codes for its
conditional parameters.

A study starts at the defaults or the centre, and continues with Latin hypercubes. This module has no other
random source, and is independent of the algorithms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trainshed.core.study.records import Parameters
from trainshed.core.study.spec import Parameter, ParameterType, Scale, Value
from trainshed.studies.routines import Array, Mask, Positions

_HYPERCUBE_SIZE = 16
"""Number of consecutive points that form a Latin hypercube. The scale of each parameter is divided into as
many intervals, and each interval contains one of these points."""

SAME_CODE = 1e-14
"""Codes with at most this difference are equal. Rounding errors are not larger. In a range from 0 to a
million, the codes of 0 and 1e-5 differ by 1e-11."""

UNKNOWN = -1.0
"""The code of a category that is not in the spec. It differs from all other codes."""


@dataclass(frozen=True)
class Node:
    """A node of the parameter tree: a parameter with its scale. `allowed_codes`: the codes of the parent
    parameter for which the node is active."""

    parameter: Parameter
    allowed_codes: tuple[float, ...] = ()

    @property
    def is_categorical(self) -> bool:
        return self.parameter.type is ParameterType.CATEGORICAL

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The minimum and maximum legal value of a numeric node."""
        if self.parameter.type is ParameterType.DISCRETE:
            return self.parameter.values[0], self.parameter.values[-1]
        return self.parameter.low, self.parameter.high

    @cached_property
    def choices(self) -> Sequence[Value]:
        """The legal values in order. Empty for a continuous node."""
        match self.parameter.type:
            case ParameterType.DOUBLE:
                return (self.parameter.low,) if self.parameter.low == self.parameter.high else ()
            case ParameterType.INTEGER:
                return range(int(self.parameter.low), int(self.parameter.high) + 1)
            case ParameterType.DISCRETE:
                return self.parameter.values
            case ParameterType.CATEGORICAL:
                return self.parameter.categories

    @property
    def size(self) -> int:
        """The number of legal values. 0 for a continuous node."""
        if self.parameter.type is ParameterType.INTEGER:  # The range may be too long for `len`.
            return int(self.parameter.high) - int(self.parameter.low) + 1
        return len(self.choices)

    @cached_property
    def listed_codes(self) -> Array:
        """The codes of the values of a DISCRETE parameter, ascending."""
        return self.to_codes(np.asarray(self.parameter.values, dtype=np.float64))

    def to_codes(self, values: Array) -> Array:
        """Return the codes of numeric values within the bounds. A node with one value has the code 0.5."""
        low, high = self.bounds
        if low == high:
            return np.full(values.shape, 0.5)
        match self.parameter.scale:
            case Scale.LINEAR:
                return (values - low) / (high - low)
            case Scale.LOG:
                return np.log(values / low) / math.log(high / low)
            case Scale.REVERSE_LOG:
                return 1.0 - np.log((low + high - values) / low) / math.log(high / low)

    def to_values(self, codes: Array, margin: float = 0.0) -> Array:
        """Return the values of codes, without clipping or rounding. `margin`: distance by which both bounds
        are moved outward."""
        low, high = self.bounds
        low, high = max(low - margin, low / 2 if low > 0 else -math.inf), high + margin
        match self.parameter.scale:
            case Scale.LINEAR:
                return low + codes * (high - low)
            case Scale.LOG:
                return low * np.exp(codes * math.log(high / low))
            case Scale.REVERSE_LOG:
                return low + high - low * np.exp((1.0 - codes) * math.log(high / low))

    def snap(self, codes: Array) -> Array:
        """Return the nearest legal codes."""
        match self.parameter.type:
            case ParameterType.DOUBLE:
                return np.clip(codes, 0.0, 1.0) if self.size == 0 else np.full(codes.shape, 0.5)
            case ParameterType.INTEGER:
                rounded = np.rint(self.to_values(np.clip(codes, 0.0, 1.0)))
                return self.to_codes(np.clip(rounded, *self.bounds))
            case ParameterType.DISCRETE:
                middles = (self.listed_codes[1:] + self.listed_codes[:-1]) / 2
                return self.listed_codes[np.searchsorted(middles, codes)]
            case ParameterType.CATEGORICAL:
                return np.clip(np.floor(codes), 0, self.size - 1)

    def place(self, shares: Array) -> Array:
        """Return legal codes for shares in [0, 1). Each listed value has an equal part of this range. Numbers
        are uniform on their scale."""
        match self.parameter.type:
            case ParameterType.DOUBLE:
                return self.snap(shares)
            case ParameterType.INTEGER:
                values = np.rint(self.to_values(shares, margin=0.5))
                return self.to_codes(np.clip(values, *self.bounds))
            case ParameterType.DISCRETE:
                return self.listed_codes[np.minimum((shares * self.size).astype(np.int64), self.size - 1)]
            case ParameterType.CATEGORICAL:
                return np.minimum(np.floor(shares * self.size), self.size - 1)

    def code(self, value: Value | None) -> float:
        """Return the code of a stored value. A numeric node replaces a value that is not finite by the
        middle, and clips others to the bounds."""
        if self.is_categorical:
            is_listed = isinstance(value, str) and value in self.parameter.categories
            return float(self.parameter.categories.index(str(value))) if is_listed else UNKNOWN
        if value is None or isinstance(value, str) or not math.isfinite(value):
            return 0.5
        low, high = self.bounds
        near = np.array([min(max(float(value), low), high)])
        return float(self.snap(self.to_codes(near))[0])

    def value(self, code: float) -> Value:
        """Return the legal value of a code, in the type of the public API."""
        match self.parameter.type:
            case ParameterType.CATEGORICAL:
                return self.parameter.categories[min(max(int(code), 0), self.size - 1)]
            case ParameterType.DISCRETE:
                return self.parameter.values[int(np.argmin(np.abs(self.listed_codes - code)))]
            case ParameterType.INTEGER:
                low, high = int(self.parameter.low), int(self.parameter.high)
                return min(max(round(float(self.to_values(np.array([code]))[0])), low), high)
            case ParameterType.DOUBLE:
                low, high = self.bounds
                exact = {0.0: low, 1.0: high}.get(code)
                return (
                    float(min(max(float(self.to_values(np.array([code]))[0]), low), high))
                    if exact is None
                    else exact
                )


class Space:
    """The whole parameter tree. Converts parameters to codes, genotypes and embeddings, and back. Shapes: n
    points, p nodes, q columns of the embedding."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        nodes: list[Node] = []
        for parameter in parameters:
            allowed = (
                ()
                if parameter.parent is None
                else tuple(nodes[parameter.parent].code(trigger) for trigger in parameter.when)
            )
            nodes.append(Node(parameter, allowed))
        self.nodes: tuple[Node, ...] = tuple(nodes)
        #: The number p of nodes.
        self.width = len(nodes)
        columns = [
            index for index, node in enumerate(nodes) for _ in range(node.size if node.is_categorical else 1)
        ]
        #: The node of each column of the embedding, shape (q,).
        self.groups: Positions = np.array(columns, dtype=np.int64)
        #: Whether the code of each node can change continuously, shape (p,).
        self.is_smooth: Mask = np.array([node.size == 0 for node in nodes], dtype=np.bool_)
        #: Whether each node is categorical, shape (p,).
        self.is_listed: Mask = np.array([node.is_categorical for node in nodes], dtype=np.bool_)
        #: Whether each column of the embedding is the code of a numeric node, shape (q,).
        self.is_number: Mask = ~self.is_listed[self.groups]

    def encode(self, points: Sequence[Parameters]) -> Array:
        """Return the codes of stored points, shape (n, p). Parameters outside the tree are ignored, because
        users can create trials."""
        table = np.full((len(points), self.width), np.nan)
        for row, point in zip(table, points, strict=True):
            values = dict(point)
            for index, node in enumerate(self.nodes):
                parent = node.parameter.parent
                if parent is None or any(abs(row[parent] - code) < SAME_CODE for code in node.allowed_codes):
                    row[index] = node.code(values.get(node.parameter.id))
        return table

    def snap(self, genotypes: Array) -> Array:
        """Return the nearest legal points of genotypes: legal codes, NaN for inactive nodes, shape (n, p)."""
        codes = np.empty_like(genotypes)
        for index, node in enumerate(self.nodes):
            codes[:, index] = node.snap(genotypes[:, index])
            if (parent := node.parameter.parent) is not None:
                parents = codes[:, parent, None]
                active = (np.abs(parents - np.array(node.allowed_codes)) < SAME_CODE).any(axis=1)
                codes[~active, index] = np.nan
        return codes

    def place(self, shares: Array) -> Array:
        """Return genotypes for points of the unit cube, shape (n, p): numbers uniform on their scale, lists
        uniform over their values."""
        return np.column_stack([node.place(shares[:, index]) for index, node in enumerate(self.nodes)])

    def genotypes(self, codes: Array) -> Array:
        """Return a copy of encoded trials in which each inactive parameter (NaN) has its middle value."""
        filled = codes.copy()
        for index, node in enumerate(self.nodes):
            column = filled[:, index]
            if node.is_categorical:
                column[np.isnan(column) | (column == UNKNOWN)] = node.size // 2
            else:
                column[np.isnan(column)] = 0.5
        return filled

    def embed(self, codes: Array) -> Array:
        """Return codes as points of a Euclidean space, shape (n, q). Different categories have distance 1.
        Inactive numbers are in the middle. Inactive and unknown categories have the same distance from all
        categories."""
        table = np.zeros((len(codes), len(self.groups)))
        at = 0
        for index, node in enumerate(self.nodes):
            column = codes[:, index]
            if node.is_categorical:
                table[:, at : at + node.size] = (column[:, None] == np.arange(node.size)) * math.sqrt(0.5)
                at += node.size
            else:
                table[:, at] = np.where(np.isnan(column), 0.5, column)
                at += 1
        return table

    def decode(self, codes: Array) -> Parameters:
        """Return one row of snapped codes as a trial's active parameters, in the tree's order."""
        return tuple(
            (node.parameter.id, node.value(float(code)))
            for node, code in zip(self.nodes, codes, strict=True)
            if not math.isnan(code)
        )

    @cached_property
    def first(self) -> Array:
        """The genotype at which a study starts: the defaults where they exist, otherwise the middle, shape
        (p,)."""
        middle = [0.0 if node.is_categorical else float(node.snap(np.array([0.5]))[0]) for node in self.nodes]
        defaults = [node.parameter.default for node in self.nodes]
        return np.array(
            [
                at if default is None else max(node.code(default), 0.0)
                for node, at, default in zip(self.nodes, middle, defaults, strict=True)
            ]
        )


def starting_point(space: Space, number: int, seed: int) -> Array:
    """Return the genotype for trial `number` (from 1) of a study, shape (p,)."""
    if number <= 1:
        return space.first
    cube, at = divmod(number - 2, _HYPERCUBE_SIZE)
    rng = np.random.default_rng((seed, cube))
    stretches = rng.permuted(np.tile(np.arange(_HYPERCUBE_SIZE), (space.width, 1)), axis=1)[:, at]
    return space.place(
        (stretches + rng.random((_HYPERCUBE_SIZE, space.width))[at])[None, :] / _HYPERCUBE_SIZE
    )[0]
