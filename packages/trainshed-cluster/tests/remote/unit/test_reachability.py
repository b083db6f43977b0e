"""Which nodes of a gang are left alone, by who reached whom."""

import pytest

from trainshed_cluster.remote.reachability import Break, judge


def breaks(*links: str) -> list[Break]:
    """`ab`: from a b is not reached."""
    return [Break(source, target, "timed out") for source, target in links]


@pytest.mark.parametrize(
    ("nodes", "links", "unfit"),
    [
        ("abc", [], ""),
        # Nobody reaches it, and it nobody.
        ("abc", ["ab", "cb", "ba", "bc"], "b"),
        # Nobody reaches it, and it reaches all: a firewall of its own.
        ("abc", ["ba", "ca"], "a"),
        # One cable of many: either will do; always the same one.
        ("abc", ["ab", "ba"], "b"),
        ("ab", ["ab", "ba"], "b"),
        # One way only: the one that is not reached.
        ("ab", ["ba"], "a"),
        ("abc", ["ba"], "a"),
        # Two switches with nothing between them: the smaller half goes.
        ("abcde", ["ad", "ae", "bd", "be", "cd", "ce"], "de"),
    ],
)
def test_as_few_as_it_takes_are_unfit(nodes: str, links: list[str], unfit: str) -> None:
    verdict = judge(nodes, breaks(*links))
    assert "".join(sorted(verdict.unfit)) == unfit
    assert not verdict.network


def test_causes_name_the_others_and_what_they_met() -> None:
    assert judge("abc", breaks("ab", "cb", "ba", "bc")).unfit == {
        "b": "it is not reached from a, c (timed out)"
    }
    many = [f"n{number}" for number in range(9)]
    verdict = judge(many, [Break(node, "n8", "refused") for node in many[:8]])
    assert verdict.unfit == {"n8": "it is not reached from n0, n1, n2, n3 and 4 more (refused)"}


def test_if_no_node_reaches_another_one_none_is_to_blame() -> None:
    verdict = judge("abc", breaks("ab", "ba", "ac", "ca", "bc", "cb"))
    assert not verdict.unfit
    assert verdict.network.startswith("none of a, b, c reaches another one (timed out from a to b)")
