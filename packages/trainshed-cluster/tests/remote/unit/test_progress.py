"""How far nodes have come that are sent environments: `trainshed_cluster.remote.agent_handle`."""

from trainshed.core.capacity import WaitReason
from trainshed_cluster.remote.agent_handle import Sending, delay_of_sending
from trainshed_cluster.remote.content.manifest import Unit

MB = 10**6


def unit(path: str, size: int) -> Unit:
    return Unit(path, "digest", size * MB, parents=())


def sending(**sent: int) -> Sending:
    """Of a node that may have three units and has asked for these."""
    progress = Sending()
    progress.grant([unit("a", 1000), unit("b", 24), unit("c", 100)])
    for path, count in sent.items():
        with progress.underway(path) as more:
            more(count * MB)
    return progress


def test_what_is_being_sent_is_told_by_size_and_node() -> None:
    delay = delay_of_sending({"n1": sending(a=400, b=12)})
    assert delay.cause is WaitReason.CONTENT
    assert delay.message == "The environment is being sent to node n1: 412 of 1,024 MB"


def test_several_nodes_are_told_together_and_those_that_have_all_are_left_out() -> None:
    nodes = {f"n{n}": sending(a=100) for n in range(5)}
    delay = delay_of_sending({"there": sending(a=1001), **nodes})
    assert delay.message == (
        "The environment is being sent to 5 nodes (n0, n1, n2 and 2 more): 500 of 5,000 MB"
    )


def test_nodes_that_have_asked_for_nothing_yet_are_made_ready() -> None:
    delay = delay_of_sending({"n1": sending(), "n2": sending(c=100)})
    assert delay.message == "What the programs need is being made ready on 2 nodes (n1, n2)"


def test_a_unit_that_is_asked_for_again_is_counted_anew_and_others_not_at_all() -> None:
    progress = sending(a=400)
    with progress.underway("a") as more, progress.underway("not granted") as nothing:
        more(MB)
        nothing(MB)
    assert progress.bytes == (MB, 1000 * MB)
    assert progress.granted == {"a", "b", "c"}
