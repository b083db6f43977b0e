"""Places the boxes of a graph in layers, from top to bottom. Pure. All lengths are in pixels."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import pairwise
from statistics import fmean
from typing import Final

from msgspec import Struct

_GAP: Final = 20.0
_LAYER_GAP: Final = 34.0
"""Distances between two boxes of a layer, and between two layers."""
_SWEEPS: Final = 6
"""Number of times that boxes are moved towards their neighbors above or below."""
Point = tuple[float, float]
Edge = tuple[str, str]
"""The keys of two boxes. The second box is in a later layer."""
_Stop = str | tuple[str, int]
"""A box, or the place where the edges of one box pass a layer."""


class Arrangement(Struct, frozen=True):
    """The positions of boxes and edges. The vertical axis points down."""

    width: float
    height: float
    #: Top left corner of each box.
    corners: Mapping[str, Point]
    #: Points of each edge: a vertical line to the end of its layer, a curve to the next layer, and so on.
    routes: Mapping[Edge, list[Point]]


def layers_of(keys: Collection[str], edges: Collection[Edge]) -> dict[str, int]:
    """Return the layer of each box: the length of the longest path that leads to it."""
    after: defaultdict[str, list[str]] = defaultdict(list)
    missing, layers = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
    for start, end in edges:
        after[start].append(end)
        missing[end] += 1
    ready = [key for key in keys if not missing[key]]
    for key in ready:
        for end in after[key]:
            layers[end] = max(layers[end], layers[key] + 1)
            missing[end] -= 1
            ready += [end] * (not missing[end])
    return layers


def arrange(sizes: Mapping[str, Point], edges: Collection[Edge]) -> Arrangement:
    """Return the positions of boxes of these sizes (width, height)."""
    layers = layers_of(sizes, edges)
    chains: dict[Edge, list[_Stop]] = {
        (start, end): [start, *((start, n) for n in range(layers[start] + 1, layers[end])), end]
        for start, end in edges
    }
    rows: list[dict[_Stop, float]] = [{} for _ in range(max(layers.values(), default=-1) + 1)]
    for key, layer in layers.items():
        rows[layer][key] = sizes[key][0]
    above: defaultdict[_Stop, set[_Stop]] = defaultdict(set)
    below: defaultdict[_Stop, set[_Stop]] = defaultdict(set)
    for (start, _), chain in chains.items():
        for layer, (upper, lower) in enumerate(pairwise(chain), layers[start] + 1):
            rows[layer].setdefault(lower, 0.0)
            above[lower].add(upper)
            below[upper].add(lower)
    centers = {key: 0.0 for row in rows for key in row}
    for sweep in range(_SWEEPS):
        for row in reversed(rows) if sweep % 2 else rows:
            _place(row, below if sweep % 2 else above, centers)
    ends = [(centers[key], width / 2) for row in rows for key, width in row.items()]
    left = min((center - half for center, half in ends), default=0.0)
    right = max((center + half for center, half in ends), default=0.0)
    spans: list[Point] = []
    for row in rows:
        top = spans[-1][1] + _LAYER_GAP if spans else 0.0
        spans.append((top, top + max(sizes[key][1] for key in row if isinstance(key, str))))
    routes: dict[Edge, list[Point]] = {}
    for (start, end), chain in chains.items():
        passed = zip(chain, spans[layers[start] :], strict=False)
        points = [(centers[stop] - left, y) for stop, span in passed for y in span]
        bottom = points[0][1] + sizes[start][1]
        routes[start, end] = [(points[0][0], bottom), *points[1:-1]]
    corners = {
        key: (centers[key] - left - sizes[key][0] / 2, spans[layer][0]) for key, layer in layers.items()
    }
    return Arrangement(right - left, spans[-1][1] if spans else 0.0, corners, routes)


def _place(
    row: Mapping[_Stop, float], near: Mapping[_Stop, Collection[_Stop]], centers: dict[_Stop, float]
) -> None:
    """Move the boxes of a row, whose widths are given, towards their neighbors (`near`) without overlaps."""
    wanted = {
        key: fmean(sorted(centers[other] for other in near[key])) if near[key] else centers[key]
        for key in row
    }
    edge = float("-inf")
    for key in sorted(row, key=wanted.__getitem__):
        centers[key] = max(wanted[key], edge + row[key] / 2)
        edge = centers[key] + row[key] / 2 + _GAP
    shift = fmean(centers[key] - wanted[key] for key in row)
    for key in row:
        centers[key] -= shift
