"""Opens a shell in the files of a failed replica, an autopsy.

A child of the zygote supervises the shell, because the replica's own shim has ended. The shell has the view,
the user and the limits of a program of that replica.
"""

import json
import os
import signal
import socket

from trainshed.replica import protocol
from trainshed.replica.sandbox import socket_calls
from trainshed.replica.supervisor import shells, start
from trainshed.replica.system import cgroups, kernel, loop, processes


def open_autopsy(order: bytes, connection: socket.socket) -> None:
    """Run the shell that an order requests. Return after the shell's exit.

    The main process receives the order as well, and becomes the shell. `order`: JSON, {"autopsy": true,
    "slot": the directory with the files, "plan": a `LaunchDocument` without a program, "shell": an order for
    a shell}. The responses on `connection` are those of a live replica's shim
    (`shells`).
    """
    slot, plan = protocol.parse_order(order)
    shell = json.loads(order)["shell"]
    groups = cgroups.ControlGroups(plan.limits)
    try:
        enclosed = start.enclose(
            plan.isolation.level, lambda program: shells.become(shell, connection, program)
        )
        os.chdir(slot)
        if isinstance(enclosed.main, OSError):
            raise enclosed.main
        groups.create()
        handle, network = enclosed.main.await_program(order), plan.network
        port, kept = network.cluster_port, network.kept_ports
        calls = socket_calls.SocketCalls(handle, network.address, port, {}, kept)
        _serve_shell(enclosed.main.process, connection, calls)
    except OSError as error:
        shells.refuse(connection, "the view of the replica cannot be created: %s" % error)
    finally:
        processes.end_descendants()
        cgroups.remove(groups.directories())


def _serve_shell(shell: int, connection: socket.socket, calls: socket_calls.SocketCalls) -> None:
    """Carry out the socket calls of a shell and report its exit. Hang it up when the peer closes
    `connection`."""
    children, events = kernel.child_signals(), loop.Loop()

    def wake() -> None:
        os.read(children, 512)

    def answer() -> None:
        if not calls.answer():
            events.drop(calls.fileno())

    def hang_up() -> None:
        events.drop(connection.fileno())
        for number in (signal.SIGHUP, signal.SIGCONT):
            processes.send(shell, number)
        events.after(shells.GRACE, lambda: processes.send(shell, signal.SIGKILL))

    events.add(children, wake)
    if calls.fileno() >= 0:
        events.add(calls.fileno(), answer)
    # Even without requested events, poll reports that the peer closed the connection.
    events.add(connection.fileno(), hang_up, 0)
    while True:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == shell:
            shells.report_exit(connection, status)
            return
        events.turn(0 if child else None)
