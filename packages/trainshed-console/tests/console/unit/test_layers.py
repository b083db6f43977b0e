"""Layout of graphs: boxes in layers without overlaps, and edges around boxes."""

import random
from itertools import combinations

import pytest

from trainshed_console.layers import Edge, arrange, layers_of


def test_layer_of_a_box_is_the_length_of_the_longest_path_to_it() -> None:
    edges = [("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")]
    assert layers_of("abcde", edges) == {"a": 0, "b": 1, "c": 2, "d": 0, "e": 0}


def test_chain_is_a_straight_line() -> None:
    sizes = dict.fromkeys("abc", (100.0, 40.0))
    assert arrange({}, []).width == 0
    arranged = arrange(sizes, [("a", "b"), ("b", "c")])
    assert arranged.width == 100 and [x for x, _ in arranged.corners.values()] == [0, 0, 0]
    assert arranged.routes["a", "b"] == [(50, 40), (50, 40), (50, arranged.corners["b"][1])]


@pytest.mark.parametrize("seed", range(30))
def test_boxes_do_not_overlap_and_edges_pass_between_them(seed: int) -> None:
    chance = random.Random(seed)
    keys = [str(number) for number in range(chance.randint(2, 25))]
    edges: list[Edge] = [pair for pair in combinations(keys, 2) if chance.random() < 0.15]
    sizes = {key: (chance.uniform(50, 400), chance.uniform(30, 300)) for key in keys}
    arranged = arrange(sizes, edges)
    frames = {key: (*arranged.corners[key], *sizes[key]) for key in keys}
    for x, y, width, height in frames.values():
        assert x > -0.01 and x + width < arranged.width + 0.01
        assert y >= 0 and y + height < arranged.height + 0.01
    for (ax, ay, aw, ah), (bx, by, bw, bh) in combinations(frames.values(), 2):
        assert ax + aw <= bx or bx + bw <= ax or ay + ah <= by or by + bh <= ay
    for start, end in edges:
        points = arranged.routes[start, end]
        assert points[0][1] == frames[start][1] + frames[start][3], "the edge starts at its box"
        assert points[-1][1] == frames[end][1], "the edge ends at its box"
        for (x, top), (_, bottom) in zip(points[2::2], points[3::2], strict=False):
            for ox, oy, width, height in frames.values():
                assert not (ox < x < ox + width and oy < bottom and top < oy + height)
