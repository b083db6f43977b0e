"""The tree of parameters as numbers: encoding to a flat table, snapping to legal values, decoding
(spec/tuning#parameters, facts/tuning#vertex).

A point is a row with one **code** per node of the tree: the place in [0, 1] on its scale for a number, the
index of its category for a category, NaN for an inactive node. A **genotype** is the same without NaN, so
that a search can flip a parent and find the children's codes. A study starts at the defaults or the centre,
then follows Latin hypercubes. Has no other random source and knows no algorithm.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from trainshed.core.study.records import Parameters
from trainshed.core.study.spec import Parameter
from trainshed.studies.nodes import SAME_CODE, UNKNOWN, Node, is_among
from trainshed.studies.routines import Array, Mask, Positions

_EVENLY = 16
"""Points that lie evenly in every parameter: one in each stretch of its scale."""


class Space:
    """The whole tree. Shapes: n points, p nodes, q columns of the embedding."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        nodes: list[Node] = []
        for parameter in parameters:
            allowed = (
                tuple(nodes[parameter.parent].code(trigger) for trigger in parameter.when)
                if parameter.parent >= 0
                else ()
            )
            nodes.append(Node(parameter, allowed))
        self.nodes: tuple[Node, ...] = tuple(nodes)
        #: p, the number of nodes.
        self.width = len(nodes)
        columns = [
            index
            for index, node in enumerate(nodes)
            for _ in range(node.size if node.is_categorical else 1)
        ]
        #: Which node each column of the embedding comes from, shape (q,).
        self.groups: Positions = np.array(columns, dtype=np.int64)
        #: For each node: whether its code may move by any small amount, shape (p,).
        self.is_smooth: Mask = np.array([node.size == 0 for node in nodes], dtype=np.bool_)
        #: For each node: whether it is categorical, shape (p,).
        self.is_listed: Mask = np.array([node.is_categorical for node in nodes], dtype=np.bool_)
        #: For each column of the embedding: whether it is the code of a numeric node, shape (q,).
        self.is_number: Mask = ~self.is_listed[self.groups]

    def encode(self, points: Sequence[Parameters]) -> Array:
        """Return the codes of stored points, shape (n, p). Parameters that the tree does not know are ignored
        (a user may have created the trial)."""
        table = np.full((len(points), self.width), np.nan)
        for row, point in zip(table, points, strict=True):
            values = dict(point)
            for index, node in enumerate(self.nodes):
                if node.parameter.parent < 0 or is_among(row[node.parameter.parent], node.allowed):
                    row[index] = node.code(values.get(node.parameter.id))
        return table

    def snap(self, genotypes: Array) -> Array:
        """Return the legal points nearest to genotypes: every code legal, NaN if inactive, shape (n, p)."""
        codes = np.empty_like(genotypes)
        for index, node in enumerate(self.nodes):
            codes[:, index] = node.snapped(genotypes[:, index])
            if node.parameter.parent >= 0:
                parents = codes[:, node.parameter.parent, None]
                active = (np.abs(parents - np.array(node.allowed)) < SAME_CODE).any(axis=1)
                codes[~active, index] = np.nan
        return codes

    def place(self, shares: Array) -> Array:
        """Return genotypes for points of the unit cube, shape (n, p): numbers evenly on their scale, lists
        evenly over their values."""
        return np.column_stack(
            [node.placed(shares[:, index]) for index, node in enumerate(self.nodes)]
        )

    def genotypes(self, codes: Array) -> Array:
        """Return the codes with the gaps of inactive nodes filled by the middle."""
        filled = codes.copy()
        for index, node in enumerate(self.nodes):
            column = filled[:, index]
            if node.is_categorical:
                column[np.isnan(column) | (column == UNKNOWN)] = node.size // 2
            else:
                column[np.isnan(column)] = 0.5
        return filled

    def embed(self, codes: Array) -> Array:
        """Return codes as points of a Euclidean space, shape (n, q): unequal categories are 1 apart, inactive
        numbers in the middle, inactive and unknown categories equally far from all."""
        table = np.zeros((len(codes), len(self.groups)))
        at = 0
        for index, node in enumerate(self.nodes):
            column = codes[:, index]
            if node.is_categorical:
                table[:, at : at + node.size] = (
                    column[:, None] == np.arange(node.size)
                ) * math.sqrt(0.5)
                at += node.size
            else:
                table[:, at] = np.where(np.isnan(column), 0.5, column)
                at += 1
        return table

    def decode(self, codes: Array) -> Parameters:
        """Return one row of snapped codes as a trial's parameters: the active ones, in the tree's order."""
        return tuple(
            (node.parameter.id, node.value(float(code)))
            for node, code in zip(self.nodes, codes, strict=True)
            if not math.isnan(code)
        )

    @cached_property
    def first(self) -> Array:
        """The genotype to begin with: the defaults where given, else the middle, shape (p,)."""
        middle = [
            0.0 if node.is_categorical else float(node.snapped(np.array([0.5]))[0])
            for node in self.nodes
        ]
        defaults = [node.parameter.default for node in self.nodes]
        return np.array(
            [
                at if default is None else max(node.code(default), 0.0)
                for node, at, default in zip(self.nodes, middle, defaults, strict=True)
            ]
        )


def starting_point(space: Space, number: int, seed: int) -> Array:
    """Return the genotype for trial `number` (from 1 on) of a study, shape (p,)."""
    if number <= 1:
        return space.first
    cube, at = divmod(number - 2, _EVENLY)
    rng = np.random.default_rng((seed, cube))
    stretches = rng.permuted(np.tile(np.arange(_EVENLY), (space.width, 1)), axis=1)[:, at]
    return space.place((stretches + rng.random((_EVENLY, space.width))[at])[None, :] / _EVENLY)[0]
