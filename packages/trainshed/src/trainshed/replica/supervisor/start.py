"""The way of a start, from the order for a replica to its end. To be read first, from top to bottom.

1. Order: an engine sends the zygote a line, and the zygote hands it to an idle shim (`await_order`) or to one
   that it forks for it.
2. Fork: the shim is process 1 of a process namespace of its own, and has forked the replica's main process
   (`enclose`). It claims the slot, so that one incarnation runs at a time (`run_incarnation`).
3. View: the main process (`main_process`) makes what the program sees of the machine, its users and limits.
4. Exec: it gives up all rights that the program may not have, and executes it, or has a preloader fork it
   (`warm_start`).
5. Log: the shim (`shim.Shim`) writes the program's output, and runs its sidecars.
6. End: the shim reaps the program and kills what is left of it, seals the log, writes the attempt record into
   the slot's journal, and only then reports it.

An order is a line of JSON: {"slot": the slot's directory, "plan": a `LaunchDocument`}. Shim and main process
both have it, each from the line (`protocol.ordered`): an idle main process exists before the order does.
"""

import contextlib
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from trainshed.replica import protocol
from trainshed.replica.observe import growing_files
from trainshed.replica.sandbox import levels, mounts, users
from trainshed.replica.supervisor import clients, journal, main_process, program, shim
from trainshed.replica.system import cache_leases, kernel, processes, unix_sockets


class Enclosed(NamedTuple):
    """A shim that is process 1 of its replica, and the replica's main process, which waits."""

    #: The shim as the service knows it.
    identity: journal.Shim
    #: The main process, or why there can be none.
    main: main_process.MainProcess | OSError
    #: The connection to its warden; None = it has a namespace, and needs none.
    warden: socket.socket | None


def enclose(
    level: str, become: Callable[[program.Program], None] = program.Program.become
) -> Enclosed:
    """Go on as the shim of a replica at that level. It has the machine's view as the service has it, but its
    own processes in /proc. Only the process that is the shim returns. `become`: turns the main process into
    its program."""
    warden: socket.socket | None = None
    namespace: users.Users | None = None
    refused: OSError | None = None
    try:
        if level == protocol.LEVEL_SESSION:
            warden = _leave_warden()
        elif os.getpid() != 1:
            levels.detach(level)
            if os.fork():
                os._exit(0)
    except OSError as error:
        refused = error
    number = int(os.readlink("/proc/self"))
    identity = journal.Shim(number, protocol.process_start(number))
    if refused is not None:
        return Enclosed(identity, refused, None)
    try:
        if warden is None:
            handle = mounts.open_path("/proc", os.O_DIRECTORY)
            kernel.unshare(kernel.CLONE_NEWNS)
            # Propagate the service's later mounts and unmounts into this namespace.
            kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
            kernel.mount("proc", "/proc", "proc", mounts.SAFE | kernel.MS_NOEXEC)
            identity = identity._replace(proc="/proc/self/fd/%d" % handle)
            # Made before, because it takes a process. The main process reports that it cannot be made.
            if level == protocol.LEVEL_OWN:
                with contextlib.suppress(OSError):
                    namespace = users.Users()
        main = main_process.MainProcess(level, namespace, become)
    except OSError as error:
        return Enclosed(identity, error, warden)
    if namespace is not None:
        namespace.close()
    if warden is None:
        kernel.forbid_inspection()  # The program is in our namespace, perhaps as the same user.
    return Enclosed(identity, main, warden)


def _leave_warden() -> socket.socket:
    """Go on in a fork whose parent, its warden, ends whatever the fork leaves if it is killed. Returns the
    connection to the warden, by which that is given the slot's lock, and a word at the end that nothing is
    left."""
    ours, theirs = socket.socketpair()
    kernel.adopt_orphans()
    if os.fork() == 0:
        ours.close()
        kernel.adopt_orphans()
        return theirs
    kernel.name_process("ts-warden")
    kernel.close_all(h for h in kernel.open_handles() if h > 2 and h != ours.fileno())
    if not unix_sockets.Receiver(ours).receive() or not ours.recv(1):
        processes.end_descendants()
    os._exit(0)


def await_order(connection: socket.socket, level: str, *, is_expected: bool) -> None:
    """Be an idle shim at that sandbox level until an order comes over the connection or the zygote ends; then
    run it. `is_expected`: it has come already."""
    enclosed = enclose(level)
    if isinstance(enclosed.main, OSError) and not is_expected:
        return  # Its successor reports the reason, if it persists.
    orders = unix_sockets.Receiver(connection).receive()
    connection.close()
    for line, handle in orders:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, handle)
        run_incarnation(line, connection, enclosed)


def run_incarnation(order: bytes, connection: socket.socket, enclosed: Enclosed) -> None:
    """Run one incarnation, reporting to `connection` and to every later connection. Blocks until it has
    ended."""
    main, warden = enclosed.main, enclosed.warden
    if not isinstance(main, OSError):
        # It begins with what needs nothing of the slot.
        main.say(order)
    slot, plan = protocol.ordered(order)
    os.chdir(slot)
    listeners = clients.Clients(connection)
    try:
        claim = journal.claim(plan.incarnation, enclosed.identity)
    except journal.Refused as refusal:
        listeners.send({"e": "refused", "cause": refusal.cause})
        return
    except OSError as error:
        listeners.send({"e": "lost", "cause": _cause(error), "by_service": True})
        return
    finished: shim.Shim | None = None
    try:
        if isinstance(main, OSError):
            raise main
        if warden is not None:
            unix_sockets.send(warden, b"\n", claim.lock)
        # These locks keep the cache cleaner away from what a live program runs from. If it was removed just
        # before, the main process does not find it, and reports that.
        directories = [*plan.isolation.read_only, plan.isolation.image]
        cache_leases.hold_leases([directory for directory in directories if directory])
        running = shim.Shim(plan, listeners, claim, slot=slot, main=main, warden=warden)
        record = running.run()
        finished = running
    except Exception as error:  # Whatever it is, the replica has ended and that is recorded.
        record = journal.lost_record(_cause(error), by_service=True)
    _write_down(claim, record, finished)
    journal.release(claim.lock)
    listeners.send(
        {"e": "lost", "cause": record["lost"], "by_service": record["by_service"]}
        if "lost" in record
        else {"e": "exited", "record": record}
    )
    if warden is not None:
        warden.sendall(b".")


def _cause(error: Exception) -> str:
    if isinstance(error, OSError) and growing_files.takes_nothing(error):
        return (
            "the disk takes nothing (%s): the replica's log or its records cannot be written; make room, or "
            "mount it for writing" % error.strerror
        )
    return "%s: %s" % (type(error).__name__, error)


def _write_down(claim: journal.Claim, record: protocol.Message, finished: shim.Shim | None) -> None:
    """Make the record durable. On a full disk, `finished` waits for space without limit, and answers services
    in the meantime. On a broken one, the record is given up."""

    def is_done() -> bool:
        try:
            claim.finish(record)
        except OSError as error:
            # Given up: connected services still receive it; later ones report the shim as lost.
            return not growing_files.takes_nothing(error)
        return True

    if finished is not None:
        finished.insist(is_done)
    else:
        is_done()
