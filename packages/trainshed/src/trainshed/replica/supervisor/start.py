"""The way of a start, from the order for a replica to its end. To be read first, from top to bottom.

1. Order: an engine sends the zygote a line, and the zygote hands it to an idle shim (`await_order`) or to one
   that it forks for it.
2. Fork: the shim (`run_incarnation`) claims the slot, so that one incarnation runs at a time, and has its
   guardian, process 1 of the replica's namespaces (`GuardianHandle`), go on.
3. View: the guardian (`_guard`) makes what the program sees of the machine, its users and limits.
4. Exec: it gives up all rights that the program may not have, and executes it (`guardian.Guardian`), or has a
   preloader fork it (`warm_start`).
5. Log: the shim (`shim.Shim`) writes what the program prints, with its sidecars beside it.
6. End: the guardian reports how the program ended; the shim seals the log, writes the attempt record into
   the slot's journal, and only then reports it.

An order is a line of JSON: {"slot": the slot's directory, "plan": a `LaunchDocument`}. Shim and guardian both
have it, each from the line (`ordered`): an idle guardian exists before the order does.
"""

import json
import os
import signal
import socket
import time

from trainshed.replica import protocol
from trainshed.replica.observe import growing_files, stall
from trainshed.replica.sandbox import levels, mounts, socket_calls, users, view
from trainshed.replica.supervisor import clients, guardian, journal, program, shim, warm_start
from trainshed.replica.system import cgroups, durable, kernel, unix_sockets


def ordered(line: bytes) -> tuple[str, protocol.LaunchDocument]:
    """Return the slot and the launch document of an order."""
    message = json.loads(line.decode("utf-8"))
    return message["slot"], protocol.LaunchDocument.from_message(message["plan"])


def await_order(connection: socket.socket, level: str) -> None:
    """Be an idle shim, with its guardian at that sandbox level, until an order comes over the connection or
    the zygote ends; then run it."""
    child = GuardianHandle(level)
    received = unix_sockets.Receiver(connection).receive_one()
    connection.close()
    if received is not None:
        line, handle = received
        run_incarnation(line, socket.socket(fileno=handle), child)


def run_incarnation(
    order: bytes, connection: socket.socket, child: "GuardianHandle | None" = None
) -> None:
    """Run one incarnation, reporting to `connection` and to every later connection. Blocks until it has
    ended. `child`: a guardian that waits already; None = one is made."""
    if child is not None:
        # It begins with what needs nothing of the slot.
        child.announce(order)
    slot, plan = ordered(order)
    os.chdir(slot)
    listeners = clients.Clients(connection)
    try:
        claim = journal.claim(plan.incarnation, outlasts_power=plan.observation.outlasts_power)
    except (journal.Refused, OSError) as refusal:
        listeners.send(_refusal(refusal))
        if child is not None:
            child.give_up()
        return
    running: shim.Shim | None = None
    waits: shim.Shim | None
    try:
        if child is None:
            child = GuardianHandle(plan.isolation.level)
            child.announce(order)
        child.grant(claim.lock)
        # These locks keep the cache cleaner away from what a live program runs from. If it was removed just
        # before, the guardian does not find it, and reports that.
        directories = [*plan.isolation.read_only, plan.isolation.image]
        program.hold_leases([directory for directory in directories if directory])
        running = shim.Shim(
            plan,
            listeners,
            claim,
            guardian=child.process,
            control=child.control,
            output=child.output,
            errors=child.errors,
        )
        record, waits = running.run(), running
    except Exception as error:  # Whatever it is, the replica has ended and that is recorded.
        if running is None or not running.found_disk_full:
            _keep_trace()
        record = journal.lost_record(_cause(error), by_service=True)
        waits = None
    if running is not None and running.found_disk_full and _is_undone(claim):
        claim.release()
        listeners.send({"e": "refused", "cause": protocol.REFUSED_FULL})
        return
    _write_down(claim, record, waits)
    claim.release()
    listeners.send(
        {"e": "lost", "cause": record["lost"], "by_service": record["by_service"]}
        if "lost" in record
        else {"e": "exited", "record": record}
    )


_NOTHING = 0
"""The null device in every shim, sent where a line has no handle of its own: every line comes with one."""


class GuardianHandle:
    """The shim's side of a forked guardian, which waits until it is given a plan, and ends if the shim
    does."""

    def __init__(self, level: str) -> None:
        """Fork it into its process namespace. Raises OSError if that cannot be made."""
        #: Read end of the pipe that its program writes its standard output to.
        self.output, output = os.pipe()
        #: Read end of the pipe for its program's standard error.
        self.errors, errors = os.pipe()
        #: Our end of the socket pair (see above).
        self.control, control = socket.socketpair()
        if level == protocol.LEVEL_SESSION:
            kernel.adopt_orphans()
        namespace = _namespace(level)
        levels.detach(level)
        #: Its process id.
        self.process = os.fork()
        if self.process == 0:
            try:
                kept = {0, 1, 2, control.fileno(), output, errors}
                if namespace is not None:
                    kept.update(namespace.handles)
                kernel.close_all(handle for handle in kernel.open_handles() if handle not in kept)
                _guard(control, (output, errors), namespace)
            except (
                Exception
            ) as error:  # The shim records it; this process has no other way to report.
                control.sendall(("failed %r\n" % error).encode("utf-8", "replace"))
            finally:
                os._exit(0)
        for theirs in (control.detach(), output, errors):
            os.close(theirs)
        if namespace is not None:
            namespace.close()

    def announce(self, order: bytes) -> None:
        """Send the line that the shim itself was given."""
        try:
            unix_sockets.send(self.control, order + b"\n", _NOTHING)
        except OSError:
            return  # It is dead, which is recorded as soon as there is a journal for it.

    def grant(self, lock: int) -> None:
        """Let it make the sandbox. From here on it holds the slot's lock as well. Raises OSError if it is
        dead."""
        unix_sockets.send(self.control, b"claimed\n", lock)

    def give_up(self) -> None:
        """Kill it, because there is nothing for it to do, and reap it."""
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def _namespace(level: str) -> users.Namespace | None:
    """Return the namespace of the program's own users, made before the guardian because it takes a process.
    None if the level has none, or if it cannot be made; the guardian reports the latter when it needs it."""
    if level != protocol.LEVEL_OWN:
        return None
    try:
        return users.Namespace()
    except OSError:
        return None


def _guard(
    control: socket.socket,
    outputs: tuple[int, int],
    namespace: users.Namespace | None,
) -> None:
    """Be the guardian: make the program's view of the machine, give up all other rights, execute the program
    in it, wait for its end. `outputs`: the write ends of its pipes."""
    kernel.name_process("ts-guardian")
    receiver = unix_sockets.Receiver(control)
    order, _ = _next(receiver)
    slot, plan = ordered(order)
    files = os.path.join(slot, protocol.FILES)
    isolation = plan.isolation
    namespaced = isolation.level != protocol.LEVEL_SESSION

    groups = cgroups.ControlGroups(plan.limits)
    main = program.Program(
        argv=list(plan.program.argv),
        environ=plan.program.environ,
        directory=plan.program.directory or os.path.join(files, program.WORK),
        output=outputs[0],
        errors=outputs[1],
        groups=groups,
    )
    seen = _view(isolation, slot, files, namespace)
    # Before anything is hidden, which includes the way to the preloader's socket.
    warm = (
        warm_start.WarmStart(plan.warm, isolation.level)
        if plan.warm.preloader and namespaced
        else None
    )

    def prepare() -> tuple[bytes, int]:
        # The service keeps the files that it makes to itself, but everybody may pass the directories on the
        # way to what the program is shown.
        os.umask(0o022)
        kernel.leave_keyring()
        refused: OSError | None = None
        if namespaced:
            try:
                groups.keep_bases()
                seen.detach()
            except OSError as error:
                refused = error  # Reported when there is an incarnation that it ends.
        _, lock = _next(receiver)
        if refused is not None:
            raise refused
        program.make_directories(files, *[program.ROOT] * isolation.own_root)
        if namespaced:
            seen.enter()
            if not (isolation.image and isolation.level == protocol.LEVEL_USER):
                kernel.forbid_inspection()  # There `drop` does it, once it needs no more of /proc.
        else:
            kernel.forbid_new_privileges()
        if isolation.image:
            _fit_image(plan, main, seen)
        connects = socket_calls.be_asked(control, plan.network)
        if warm is not None:
            socket_calls.hand_over(
                control, warm.prepare(main, isolation.level, seen.owners, connects)
            )
        return receiver.rest, lock

    def settle() -> list[int]:
        groups.hold()
        if namespaced:
            levels.drop(isolation.level, seen.owners, bool(isolation.image))
            if plan.limits.pids_limit and not plan.limits.pids_base:
                program.limit_processes(plan.limits.pids_limit)
        return groups.ways_in

    stall.arrange(plan)
    guardian.Guardian(
        control,
        main,
        list(outputs),
        namespaced=namespaced,
        prepare=prepare,
        settle=settle,
        warm=warm,
    ).run()


def _next(receiver: unix_sockets.Receiver) -> tuple[bytes, int]:
    """Return the shim's next line and its handle, which stays open; ends this process if the shim is gone."""
    received = receiver.receive_one()
    if received is None:
        os._exit(1)
    return received


def _fit_image(plan: protocol.LaunchDocument, main: program.Program, seen: view.View) -> None:
    """Apply what the image's own files say: its user and that user's home directory."""
    user, group, home = seen.user
    plan.program.environ.setdefault("HOME", home)
    mounts.make_directory(plan.program.directory, 0o755, seen.owners)
    mounts.make_directory("/tmp", 0o1777, seen.owners)
    if user or group:
        if plan.isolation.level == protocol.LEVEL_USER:
            return  # There is only one user, who is root inside the namespace.
        main.run_as(user, group)


def _view(
    isolation: protocol.Isolation, slot: str, files: str, namespace: users.Namespace | None
) -> view.View:
    binds = [(os.path.join(files, program.HYPERTUNE), view.HYPERTUNE)]
    if not isolation.image:
        binds.append((os.path.join(files, program.TEMPORARY), "/tmp"))
        binds.append((os.path.join(files, program.KEPT_TEMPORARY), "/var/tmp"))
    return view.View(
        isolation,
        files=files,
        scratch=os.path.join(slot, "view"),
        layer=os.path.join(files, program.LAYER),
        root=os.path.join(files, program.ROOT) if isolation.own_root else "",
        binds=binds,
        namespace=namespace,
    )


_NO_SPACE_PAUSE = 0.5
_NO_SPACE_PATIENCE = 15.0
"""Seconds for which an attempt record is tried on a broken disk, or on a full one where no shim answers
meanwhile; shorter than a service's lease."""


def _refusal(error: journal.Refused | OSError) -> protocol.Message:
    """Return the message for a slot that could not be claimed, so that nothing ran."""
    if isinstance(error, journal.Refused):
        return {"e": "refused", "cause": error.cause}
    if growing_files.takes_nothing(error):
        return {"e": "refused", "cause": protocol.REFUSED_FULL}
    return {"e": "lost", "cause": _cause(error), "by_service": True}


def _is_undone(claim: journal.Claim) -> bool:
    """Undo the record that the incarnation starts; false: that failed, so a record of its end is needed."""
    try:
        claim.undo()
    except OSError:
        return False
    return True


def _cause(error: Exception) -> str:
    """Describe why this process could not do its part."""
    if isinstance(error, OSError) and growing_files.takes_nothing(error):
        return (
            "the disk takes nothing (%s): the replica's log or its records cannot be written; make room, or "
            "mount it for writing" % error.strerror
        )
    return "%s: %s" % (type(error).__name__, error)


def _keep_trace() -> None:
    import traceback  # Only here: every module imported earlier makes each fork slower.

    try:
        durable.write("shim.err", traceback.format_exc(), sync=False)
    except OSError:
        return  # The disk is full: the record holds a short form.


def _write_down(claim: journal.Claim, record: protocol.Message, running: shim.Shim | None) -> None:
    """Make the record durable. On a full disk `running` waits for space without limit, and answers services
    meanwhile. A broken disk is retried for `_NO_SPACE_PATIENCE`, and so is a full one without a shim; after
    that the record is given up."""
    deadline = time.monotonic() + _NO_SPACE_PATIENCE
    while True:
        try:
            if running is not None:
                running.insist(lambda: _fits(claim, record))
            else:
                claim.finish(record)
            return
        except OSError:
            if time.monotonic() > deadline:
                return  # Connected services hear it all the same; later ones find the shim lost.
        time.sleep(_NO_SPACE_PAUSE)


def _fits(claim: journal.Claim, record: protocol.Message) -> bool:
    """Write the record, if the disk has space for it. Raises OSError for any other failure."""
    try:
        claim.finish(record)
    except OSError as error:
        if not growing_files.takes_nothing(error):
            raise
        return False
    return True
