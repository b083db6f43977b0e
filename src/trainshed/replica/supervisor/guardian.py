"""Runs the process between shim and program: process 1 of the replica's namespace, which reaps its orphans.

The program itself is never process 1, because the kernel shields process 1 from its own signals, and how the
program dies decides what happens to the job. The guardian starts the main process when told to, passes on the
request to stop, records how the main process ended, kills every other process of the replica, reports and
ends. If the shim dies, the guardian and everything below it die too.

`GuardianHandle` is the shim's side. It can be forked before it is known for which program, so that a start
need not wait for the fork.

They speak over a socket pair, one line per message. Shim to guardian, in this order:
- the request with the launch document, as the zygote gave it to the shim
- `claimed`, with the slot's lock; until then nothing of the slot is touched
- `go`: run the program
- at any time `stop` (SIGTERM to the main process's group), `kill` (SIGKILL to everything), `segv`
  (SIGSEGV to the main process), and `shell ORDER` with a file handle (`shells`)
Guardian to shim:
- `asked`, with a file handle on which the program's socket calls are asked about (`socket_calls`)
- `started NS`, and of a program that was to begin in a fork `warm WHAT` or `cold WHY`; then `ended STATUS NS`
  (STATUS as of wait)
- in place of all that `failed TEXT` if the sandbox could not be made, or `full TEXT` if the disk has no space
"""

import json
import os
import select
import signal
import socket
from collections.abc import Callable

from trainshed.replica import protocol
from trainshed.replica.observe import growing_files, stall
from trainshed.replica.observe.segments import now
from trainshed.replica.sandbox import levels, mounts, socket_calls, users, view
from trainshed.replica.supervisor import program, shells, warm_start
from trainshed.replica.system import (
    cgroups,
    kernel,
    processes,
    unix_sockets,
)


class Guardian:
    """Makes the sandbox, starts the program in it and waits for whatever ends there."""

    def __init__(
        self,
        control: socket.socket,
        main: program.Program,
        outputs: list[int],
        *,
        namespaced: bool,
        prepare: Callable[[], tuple[bytes, int]],
        settle: Callable[[], list[int]],
        warm: warm_start.WarmStart | None = None,
    ) -> None:
        self._control = control
        #: Whether this process is process 1 of a process namespace.
        self._namespaced = namespaced
        #: Makes the sandbox once the slot is claimed. Returns what was read from the control socket beyond
        #: that, and the slot's lock.
        self._prepare = prepare
        #: Gives up the rights that the program may not have; called in the process that becomes or starts it.
        #: Returns handles by which a process joins the program's control groups.
        self._settle = settle
        #: The warm start, if a preloader was asked to fork the program; None = none was.
        self._warm = warm
        self._program = main
        #: Handles to be closed here once the program has them.
        self._outputs = outputs
        self._main = 0
        self._main_reaped = False
        #: What was read from the control socket and not handled yet.
        self._inbox = b""
        self._handed: list[int] = []
        self._settled = False
        self._may_go = False
        #: The slot's lock; held as long as anything of the replica lives.
        self._lock = -1

    def run(self) -> None:
        """Run the program to its end; return when nothing of the replica lives any more."""
        if self._namespaced and os.getpid() != 1:
            # Everything in this namespace is killed at the end, which must never be the whole machine's.
            raise RuntimeError("the guardian is not the first process of a namespace of its own")
        if self._namespaced:
            kernel.die_with_parent(signal.SIGKILL)
        else:
            kernel.adopt_orphans()
        wake, children = kernel.child_signals()
        try:
            self._inbox, self._lock = self._prepare()
        except OSError as error:
            self._say("%s %s" % ("full" if growing_files.takes_nothing(error) else "failed", error))
            return
        try:
            self._start_main([wake, children])
        except program.NoProcess as shortage:
            self._say("failed no process can be made for the program (%s)" % shortage.cause)
            return
        status = self._watch(children)
        ended = now()
        self._kill_all()
        self._say("ended %d %d" % (status, ended))

    def _say(self, text: str) -> None:
        try:
            self._control.sendall((text + "\n").encode("utf-8", "replace"))
        except OSError:
            self._kill_all()  # The shim is gone: there is nobody to report to, and nothing may remain.

    def _start_main(self, close: list[int]) -> None:
        """Start the program as soon as the shim says so. Raises NoProcess."""
        if not self._program.argv:
            self._close_outputs()
            self._await_go()
            self._say("started %d" % now())
            return
        if self._warm is not None and not self._warm.cold_because and self._start_warm():
            return
        try:
            self._fork_main(close)
        finally:
            if self._warm is not None:
                self._say("%s %s" % (warm_start.COLD, self._warm.cold_because))

    def _start_warm(self) -> bool:
        """Have a fork of a preloader become the program. Returns false if there is no such fork."""
        assert self._warm is not None
        self._await_go()
        at = now()
        groups = self._settle()
        self._settled = True
        kernel.die_with_parent(signal.SIGKILL)
        self._main = self._warm.run(self._program, groups)
        if not self._main:
            return False
        self._close_outputs()
        self._say("started %d" % at)
        self._say("%s %s" % (warm_start.WARM, self._warm.preloaded))
        return True

    def _settle_once(self) -> None:
        """Give up rights, unless this process has done so; another process may have done it for itself
        alone."""
        if not self._settled:
            self._settle()
            self._settled = True

    def _fork_main(self, close: list[int]) -> None:
        """Fork the main process at once and let it wait for `go`, so that the fork overlaps with the shim's
        work.

        The main process asks the kernel to die with this process, which nothing else ensures without a
        namespace.
        """
        gate_read, gate_write = os.pipe()
        parent = os.getpid()
        try:
            self._main = os.fork()
        except OSError as error:
            raise program.NoProcess(str(error.strerror)) from None
        if self._main == 0:
            code = 125
            try:
                signal.set_wakeup_fd(-1)
                kernel.die_with_parent(signal.SIGKILL)
                self._control.close()
                kernel.close_all([*close, gate_write])
                if os.getppid() == parent and os.read(gate_read, 1):
                    self._settle_once()
                    kernel.die_with_parent(signal.SIGKILL)
                    self._program.become()
            except program.NotRun as refusal:
                code = refusal.code
            finally:
                os._exit(code)
        os.close(gate_read)
        self._close_outputs()
        self._await_go()
        at = now()
        os.write(gate_write, b"g")
        os.close(gate_write)
        self._say("started %d" % at)

    def _close_outputs(self) -> None:
        """Leave the pipes to the program alone, so that they end with it."""
        for handle in self._outputs:
            os.close(handle)

    def _await_go(self) -> None:
        if self._may_go:
            return
        while b"go\n" not in self._inbox:
            data = self._control.recv(256)
            if not data:
                self._kill_all()
                os._exit(1)
            self._inbox += data
        self._inbox = self._inbox.replace(b"go\n", b"", 1)
        self._may_go = True

    def _watch(self, children: int) -> int:
        """Serve the shim and reap orphans until the main process has ended; return its wait status. Without a
        main process, return 0 when the last shell is over."""
        poll = select.poll()
        poll.register(children, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        running = shells.Shells(self._program, poll, self._leave_guardian)
        self._obey(running)
        while True:
            status = self._reap(running)
            if status is not None:
                return status
            if not self._program.argv and running.are_over:
                return 0
            for handle, _ in poll.poll(running.pause()):
                if handle == children:
                    os.read(children, 512)
                elif not running.closed(handle):
                    self._hear()
                    self._obey(running)
            running.tick()

    def _hear(self) -> None:
        try:
            data, handles = unix_sockets.receive_some(self._control)
        except BlockingIOError:
            return
        if not data:
            self._kill_all()
            os._exit(1)
        self._inbox += data
        self._handed += handles

    def _leave_guardian(self) -> None:
        """Turn a child that is to be a shell from a guardian into a process with no more rights than the
        program."""
        self._control.close()
        self._settle_once()

    def _obey(self, running: shells.Shells) -> None:
        *words, self._inbox = self._inbox.split(b"\n")
        for word in words:
            if word.startswith(b"shell "):
                running.open(word[6:], self._handed.pop(0))
            elif self._main:
                program.obey(word, self._main)

    def _reap(self, running: shells.Shells) -> int | None:
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if child == 0:
                return None
            if child == self._main:
                self._main_reaped = True
                return status
            running.reaped(child, status)

    def _kill_all(self) -> None:
        """Kill and reap every other process of the namespace, or, without one, every descendant."""
        if not self._namespaced:
            if self._main:
                program.signal_group(self._main, signal.SIGKILL, is_reaped=self._main_reaped)
            processes.end_descendants()
            return
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # Nobody is left. A kill of all would have the kernel pass every process of the machine.
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass  # Nobody is left to be signalled; zombies may still have to be reaped.
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            return


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
        """Send the line that the shim itself was given. The guardian begins with what needs nothing of the
        slot. Raises OSError if it is dead."""
        unix_sockets.send(self.control, order + b"\n", _NOTHING)

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
    kernel.name_process("ts-guardian")
    receiver = unix_sockets.Receiver(control)
    order, _ = _next(receiver)
    message = json.loads(order.decode("utf-8"))
    plan = protocol.LaunchDocument.from_message(message["plan"])
    files = os.path.join(message["slot"], protocol.FILES)
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
    seen = _view(isolation, message["slot"], files, namespace)
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
    Guardian(
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
