"""Runs one incarnation of a replica (one run of its program), from its order to its end. Read this module
first, from top to bottom.

1. Order: an engine sends a line to the zygote. The zygote passes the line to an idle shim (`await_order`) or
   to a new one.
2. Fork: the shim is process 1 of its own process namespace, and has forked the replica's main process
   (`enclose`). The shim claims the slot, so that only one run of a replica exists at a time
   (`run_incarnation`).
3. View: the main process (`main_process`) builds the program's view of the machine, its users and its limits.
4. Exec: the main process drops all rights that the program must not have. Then it executes the program, or
   has a preloader fork the program (`warm_start`).
5. Log: the shim (`shim.Shim`) writes the program's output to the log, and runs its sidecars.
6. End: the shim reaps the program, kills its remaining processes and seals the log. It writes the attempt
   record into the slot's journal, and only then reports the record.

An order is a line of JSON: {"slot": the slot's directory, "plan": a `LaunchDocument`}. Shim and main process
each parse this line (`protocol.parse_order`), because an idle main process exists before the order.
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
    """A shim that is process 1 of its replica, and the replica's waiting main process."""

    #: The shim's process, in the process namespace of the service.
    identity: journal.Shim
    #: The main process, or the error that prevented its creation.
    main: main_process.MainProcess | OSError
    #: The connection to the shim's warden; None = the shim has its own namespace and needs no warden.
    warden: socket.socket | None


def enclose(level: str, become: Callable[[program.Program], None] = program.Program.become) -> Enclosed:
    """Become the shim of a replica at an isolation level, and fork the replica's main process, which waits
    for an order.

    The shim becomes process 1 of a new process namespace. At level `session`, the shim has a warden instead
    of a namespace. The namespace or the warden may require forks. Only the shim's process returns from this
    function.

    The shim keeps the service's view of the machine, except that /proc shows its own process namespace.
    `become`: turns the main process into its program.
    """
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
            # Create the namespace before the order arrives, because this takes a fork. If it fails, the main
            # process tries again and reports the error.
            if level == protocol.LEVEL_OWN:
                with contextlib.suppress(OSError):
                    namespace = users.Users()
        main = main_process.MainProcess(level, namespace, become)
    except OSError as error:
        return Enclosed(identity, error, warden)
    if namespace is not None:
        namespace.close()
    if warden is None:
        # Protect the shim from inspection: the program is in its namespace, and may run as the same user.
        kernel.forbid_inspection()
    return Enclosed(identity, main, warden)


def _leave_warden() -> socket.socket:
    """Fork the shim, and continue in the fork. The parent process becomes the shim's warden: if the shim is
    killed, the warden kills the shim's remaining descendants. Returns the connection to the warden. The shim
    sends the lock of the replica's directory to the warden, and at the end reports that no process is left.
    """
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
    """Run as an idle shim at an isolation level until an order arrives on the connection; then carry it out.
    Also returns if the zygote exits. `is_expected`: whether an order is pending."""
    enclosed = enclose(level)
    if isinstance(enclosed.main, OSError) and not is_expected:
        return  # No order waits for this shim. If the error persists, the next shim reports it.
    orders = unix_sockets.Receiver(connection).receive()
    connection.close()
    for line, handle in orders:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, handle)
        run_incarnation(line, connection, enclosed)


def run_incarnation(order: bytes, connection: socket.socket, enclosed: Enclosed) -> None:
    """Carry out one run (incarnation) of a replica, and report it on `connection` and all later connections.
    Blocks until the run has ended."""
    main, warden = enclosed.main, enclosed.warden
    if not isinstance(main, OSError):
        # Send the order now: the main process starts with work that does not need the replica's directory.
        main.send(order)
    slot, plan = protocol.parse_order(order)
    os.chdir(slot)
    listeners = clients.Clients(connection)
    try:
        claim = journal.claim(plan.incarnation, enclosed.identity)
    except journal.StartRejected as refusal:
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
        # These locks prevent the cache cleaner from removing directories while the program runs. If a
        # directory was removed just before, the main process reports it as missing.
        directories = [*plan.isolation.read_only, plan.isolation.image]
        cache_leases.hold_leases([directory for directory in directories if directory])
        running = shim.Shim(plan, listeners, claim, slot=slot, main=main, warden=warden)
        record = running.run()
        finished = running
    except Exception as error:  # Any error ends this run of the replica and is recorded.
        record = journal.lost_record(_cause(error), by_service=True)
    _record_end(claim, record, finished)
    journal.release(claim.lock)
    listeners.send(
        {"e": "lost", "cause": record["lost"], "by_service": record["by_service"]}
        if "lost" in record
        else {"e": "exited", "record": record}
    )
    if warden is not None:
        warden.sendall(b".")


def _cause(error: Exception) -> str:
    if isinstance(error, OSError) and growing_files.is_unwritable(error):
        return (
            "the replica's log or records cannot be written, because the disk accepts no data (%s). Free "
            "space on the disk, or mount it for writing" % error.strerror
        )
    return "%s: %s" % (type(error).__name__, error)


def _record_end(claim: journal.Claim, record: protocol.Message, finished: shim.Shim | None) -> None:
    """Make the attempt record durable. On a full disk, the shim `finished` waits for space without a time
    limit, and responds to services in the meantime. On a broken disk, the record is lost."""

    def is_done() -> bool:
        try:
            claim.finish(record)
        except OSError as error:
            # If the record is lost, connected services still receive it. Services that connect later report
            # the shim as lost.
            return not growing_files.is_unwritable(error)
        return True

    if finished is not None:
        finished.retry_write(is_done)
    else:
        is_done()
