"""The demo program's frames, sums, and meeting of replicas."""

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from trainshed_demo.allreduce import Follower, GatherError, Group, Leader, Meeting, join
from trainshed_demo.cluster import Address
from trainshed_demo.frames import Channel, Kind, PeerLostError
from trainshed_demo.model import CLASSES, PIXELS, Examples, Network, Sums, Vector

from tests.ports import free_port

SETTINGS = np.array([1, 2, 3], np.float32)


def silent(text: str) -> None:
    del text


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, "the peer")
    channel.allow_silence(5)
    with theirs:
        yield channel, theirs
    channel.close()


def group_of(size: int) -> tuple[Leader, list[Follower]]:
    """A leader and its followers, connected."""
    leader, followers = Leader(), list[Follower]()
    for rank in range(1, size):
        ours, theirs = socket.socketpair()
        leader.channels.append(Channel(ours, f"worker {rank}"))
        followers.append(Follower(Channel(theirs, "the primary"), rank, size))
    return leader, followers


def sum_over(vectors: list[Vector]) -> list[Vector]:
    """What each replica gets when replica n gives the n-th vector."""
    leader, followers = group_of(len(vectors))
    with ThreadPoolExecutor(len(vectors)) as pool:
        members: list[Group] = [leader, *followers]
        futures = [
            pool.submit(member.sum, own) for member, own in zip(members, vectors, strict=True)
        ]
        totals = [future.result() for future in futures]
    leader.close()
    for follower in followers:
        follower.channel.close()
    return totals


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_a_frame_arrives_as_it_was_sent(pair: tuple[Channel, socket.socket], size: int) -> None:
    channel, theirs = pair
    peer = Channel(theirs, "us")
    body = np.random.default_rng(0).normal(size=size).astype(np.float32)
    channel.send(Kind.SUM, 7, body)
    frame = peer.expect(Kind.SUM, 7)
    np.testing.assert_array_equal(frame.body, body)
    assert frame.body.dtype == np.float32
    assert channel.bytes_moved == peer.bytes_moved == 9 + 4 * size


def test_the_bytes_on_the_wire(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    channel.send(Kind.HELLO, 2, np.array([1.0], np.float32))
    assert theirs.recv(100) == bytes.fromhex("01 00000002 00000004 0000803f")


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"GET / HTTP/1.1\r\n", id="something else"),
        pytest.param(struct.pack("!BII", 9, 0, 0), id="unknown kind"),
        pytest.param(struct.pack("!BII", 3, 0, 2**31), id="too long"),
        pytest.param(struct.pack("!BII", 3, 0, 6), id="half a number"),
    ],
)
def test_nonsense_is_refused_by_its_header(
    pair: tuple[Channel, socket.socket], header: bytes
) -> None:
    channel, theirs = pair
    theirs.sendall(header)
    with pytest.raises(PeerLostError, match="does not speak"):
        channel.receive()


def test_a_peer_that_goes_away_is_lost(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    theirs.sendall(struct.pack("!BII", 3, 0, 8) + b"\0\0\0\0")
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(PeerLostError, match="lost the peer: it closed"):
        channel.receive()


def test_a_silent_peer_is_lost(pair: tuple[Channel, socket.socket]) -> None:
    channel, _ = pair
    channel.allow_silence(0.01)
    with pytest.raises(PeerLostError, match="lost the peer"):
        channel.receive()


def test_a_frame_out_of_turn_breaks_the_group(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    Channel(theirs, "us").send(Kind.SUM, 3)
    with pytest.raises(PeerLostError, match="SUM 3 out of turn"):
        channel.expect(Kind.SUM, 2)


def test_all_replicas_get_the_same_sum() -> None:
    draw = np.random.default_rng(1)
    vectors = [draw.normal(size=1000).astype(np.float32) for _ in range(4)]
    totals = sum_over(vectors)
    for total in totals:
        np.testing.assert_array_equal(total, totals[0])
    np.testing.assert_allclose(totals[0], np.sum(vectors, axis=0), rtol=1e-5, atol=1e-5)


def test_alone_the_sum_is_a_copy() -> None:
    mine = np.ones(3, np.float32)
    total = Leader().sum(mine)
    assert total is not mine
    np.testing.assert_array_equal(total, mine)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_shared_gradients_are_those_of_the_whole_batch(size: int) -> None:
    """Data-parallel: what the replicas sum up is what one process computes over all examples."""
    draw = np.random.default_rng(2)
    batch = Examples(draw.random((17, PIXELS), np.float32), draw.integers(0, CLASSES, 17, np.int64))
    network = Network(hidden=8)
    parameters = network.initial_state(seed=3).parameters
    rows = np.arange(len(batch))
    shares = [network.sums(parameters, batch.take(rows[rank::size])) for rank in range(size)]

    total = Sums.from_vector(sum_over([share.to_vector() for share in shares])[0])
    whole = network.sums(parameters, batch)
    np.testing.assert_allclose(total.gradient, whole.gradient, rtol=1e-4, atol=1e-5)
    assert total.loss == pytest.approx(whole.loss, rel=1e-5)
    assert (total.correct, total.count) == (whole.correct, whole.count)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    draw = np.random.default_rng(4)
    batch = Examples(draw.random((5, PIXELS), np.float32), draw.integers(0, CLASSES, 5, np.int64))
    network = Network(hidden=6)
    parameters = network.initial_state(seed=5).parameters
    direction = draw.normal(size=network.size).astype(np.float32)
    # Short, lest a hidden unit be switched on or off on the way.
    step = 1e-4
    direction *= step
    ahead = network.sums(parameters + direction, batch).loss
    behind = network.sums(parameters - direction, batch).loss
    slope = float(network.sums(parameters, batch).gradient @ direction) / step
    assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-2)


def test_no_examples_give_no_gradient() -> None:
    """A replica's share of the last batch of an epoch may be empty."""
    network = Network(hidden=4)
    nothing = Examples(np.zeros((0, PIXELS), np.float32), np.zeros(0, np.int64))
    sums = network.sums(network.initial_state(seed=1).parameters, nothing)
    assert not sums.gradient.any()
    assert (sums.loss, sums.correct, sums.count) == (0, 0, 0)


def join_later(
    pool: ThreadPoolExecutor, address: Address, rank: int, settings: Vector = SETTINGS
) -> Future[Follower]:
    return pool.submit(join, address, rank, 3, settings, 10)


def test_workers_may_come_before_the_primary() -> None:
    address = Address("127.0.0.1", free_port())
    with ThreadPoolExecutor(2) as pool:
        early = [join_later(pool, address, rank) for rank in (2, 1)]
        with Meeting(address, 3, SETTINGS) as meeting:
            leader = meeting.gather(10, silent)
    assert [channel.peer for channel in leader.channels] == ["worker 1", "worker 2"]
    assert sorted(follower.result().rank for follower in early) == [1, 2]
    leader.close()
    for follower in early:
        follower.result().channel.close()


def test_a_worker_that_comes_back_replaces_its_former_self_and_strangers_are_ignored() -> None:
    address = Address("127.0.0.1", free_port())
    heard: list[str] = []
    with (
        Meeting(address, 3, SETTINGS) as meeting,
        socket.create_connection(address) as stranger,
    ):
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        former, present, other = (join(address, rank, 3, SETTINGS, 10) for rank in (1, 1, 2))
        group = meeting.gather(10, heard.append)
    group.tell(Kind.DONE)
    assert present.channel.receive().kind is Kind.DONE
    with pytest.raises(PeerLostError):
        former.channel.receive()
    assert heard[0].startswith("ignored a connection: ")
    group.close()
    for follower in (former, present, other):
        follower.channel.close()


def test_other_arguments_are_refused() -> None:
    address = Address("127.0.0.1", free_port())
    with Meeting(address, 2, SETTINGS) as meeting:
        follower = join(address, 1, 2, SETTINGS + 1, 10)
        with pytest.raises(GatherError, match="worker 1 was started with other arguments"):
            meeting.gather(10, silent)
        follower.channel.close()


def test_waiting_has_an_end_on_both_sides() -> None:
    address = Address("127.0.0.1", free_port())
    with pytest.raises(GatherError, match=f"primary at {address} was not reached"):
        join(address, 1, 2, SETTINGS, 0.01)
    with (
        Meeting(address, 3, SETTINGS) as meeting,
        pytest.raises(GatherError, match=r"workers \[1, 2\] did not join"),
    ):
        meeting.gather(0.01, silent)


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])
        with pytest.raises(GatherError, match=f"cannot listen on {address}"):
            Meeting(address, 2, SETTINGS)


def test_alone_nothing_is_opened() -> None:
    with Meeting(None, 1, SETTINGS) as meeting:
        assert meeting.gather(0, silent).size == 1
