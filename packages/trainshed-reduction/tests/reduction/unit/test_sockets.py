"""What connections between workers and reducers are like (spec/reduction#flow-control)."""

import socket

from trainshed_reduction.sockets import set_options


def test_how_much_is_under_way_is_not_cubic_s_to_say() -> None:
    """spec/reduction#flow-control: a window fills the link also over a long way and after a pause, which
    cubic's slow start prevents; what a system has chosen for itself otherwise stays."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for chosen, used in (("cubic", "reno"), ("reno", "reno"), ("bbr", "bbr")):
            with socket.create_connection(listener.getsockname()) as client:
                try:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, chosen.encode())
                except OSError:
                    assert chosen != "reno", "every Linux has it"
                    continue
                set_options(client, 60.0)
                congestion = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                assert congestion.rstrip(b"\0").decode() == used


def test_a_host_that_vanishes_is_noticed() -> None:
    """spec/reduction#losses: within half a minute, and so is one that takes nothing any more."""
    options = (
        socket.TCP_KEEPIDLE,
        socket.TCP_KEEPINTVL,
        socket.TCP_KEEPCNT,
        socket.TCP_USER_TIMEOUT,
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        set_options(client, 20.0)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, between, count, limit = (
            client.getsockopt(socket.IPPROTO_TCP, option) for option in options
        )
    assert idle + between * count <= 30
    assert limit == 20_000
