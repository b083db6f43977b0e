"""Runs the main process of a replica, which builds the program's view, drops rights, and becomes the program.

The shim forks the main process, which has the shim's view of the machine until its own view is complete.
Shells enter this view later (`enter`). In a warm start, a preloader's fork enters the view and becomes the
program instead. `start` describes the whole sequence.

Shim and main process exchange messages, one per line, over a socket pair. The pair closes when the main
process executes the program. Messages from the shim:
- the order, as received from the zygote
- `claimed`: the shim has claimed the slot and created its control groups. The main process does not touch the
  slot before this message.
- `go`: run the program.
Messages from the main process:
- `asked`, with the file descriptor that receives notifications of the program's socket calls (`socket_calls`)
- `made VIEW`: the view is complete, and this process waits. The message has file descriptors of the
  namespaces that shells enter. If the program has its own users, the last one is their namespace. VIEW:
  {"owned": whether the program has own users, "user": [user, group] inside the view or null, "home": home
  directory in an image or null}
- in a warm start, `warm PID MODULES`: the process PID is the main process from here on
- if a warm start was requested but impossible, `cold REASON`
- `failed TEXT`: the program cannot be started
"""

import os
import socket
from collections.abc import Callable, Sequence

from trainshed.replica import protocol
from trainshed.replica.sandbox import levels, mounts, socket_calls, users, view
from trainshed.replica.supervisor import program, warm_start
from trainshed.replica.system import cgroups, kernel, unix_sockets

_NAMESPACES = ("mnt", "uts", "ipc")


class MainProcess:
    """A main process, as its shim sees it. The constructor forks the main process, which then waits for an
    order. It is killed when the shim exits."""

    def __init__(
        self, level: str, namespace: users.Users | None, become: Callable[[program.Program], None]
    ) -> None:
        """`level`: isolation level. `namespace`: namespace of the program's own users, if it was created in
        advance. `become`: turns the main process into its program. Raises OSError."""
        #: Read end of the pipe for the program's standard output.
        self.output, output = os.pipe()
        #: Read end of the pipe for the program's error output.
        self.errors, errors = os.pipe()
        #: The shim's socket of the socket pair.
        self.control, control = socket.socketpair()

        def begin() -> None:
            kernel.name_process("ts-program")
            self.control.close()
            kernel.close_all([self.output, self.errors])
            _Startup(control, (output, errors), level, namespace).run(become)

        #: Process ID of the main process.
        self.process = kernel.fork_helper(begin)
        for theirs in (control.detach(), output, errors):
            os.close(theirs)

    def send(self, line: bytes) -> None:
        try:
            self.control.sendall(line + b"\n")
        except OSError:
            return  # The main process has exited, which the shim detects.

    def await_program(self, order: bytes) -> int:
        """Send an order for a program without a shim, and wait until this process has become the program.
        Return the file descriptor for its socket calls, or -1 if no calls are handled. Raises OSError."""
        for line in (order.rstrip(b"\n"), b"claimed", b"go"):
            self.send(line)
        lines, handles = b"", list[int]()
        while (received := unix_sockets.receive(self.control))[0]:
            lines += received[0]
            handles += received[1]
        for line in lines.splitlines():
            if line.startswith(b"failed "):
                raise OSError(line.partition(b" ")[2].decode("utf-8", "replace"))
        return handles[0] if lines.startswith(b"asked\n") else -1


def program_of(
    slot: str, plan: protocol.LaunchDocument, groups: cgroups.ControlGroups, outputs: Sequence[int]
) -> program.Program:
    """Return the program of a launch document. `outputs`: descriptors of its standard output and error."""
    if plan.limits.stall_after:
        # With this variable, Python programs print their stacks on SIGABRT (`stall`).
        plan.program.environ.setdefault("PYTHONFAULTHANDLER", "1")
    work = os.path.join(slot, protocol.FILES, program.WORK)
    return program.Program(
        argv=list(plan.program.argv),
        environ=plan.program.environ,
        directory=plan.program.directory or work,
        output=outputs[0],
        errors=outputs[1],
        groups=groups,
    )


class _Startup:
    """The work of the main process before it becomes the program."""

    def __init__(
        self, control: socket.socket, outputs: tuple[int, int], level: str, namespace: users.Users | None
    ) -> None:
        """Do the work that does not depend on the replica, and then wait for the order."""
        self._control = control
        self._inbox = b""
        self._level = level
        self._is_namespaced = level != protocol.LEVEL_SESSION
        self._refused: OSError | None = None
        devices: int | None = None
        try:
            kernel.join_new_keyring()
            if self._is_namespaced:
                view.detach()
                devices = view.own_devices()
        except OSError as error:
            self._refused = error
        slot, self._plan = protocol.parse_order(self._next())
        self._files = os.path.join(slot, protocol.FILES)
        self._groups = cgroups.ControlGroups(self._plan.limits)
        self._program = program_of(slot, self._plan, self._groups, outputs)
        self._view = _view(self._plan, slot, self._files, namespace, devices)
        #: The connection to the preloader that will fork the program; None if no preloader listened.
        self._preloader: socket.socket | None = None
        #: Whether the shim handles connect calls; None if it handles no calls at all.
        self._connects: bool | None = None

    def run(self, become: Callable[[program.Program], None]) -> None:
        """Become the program. Returns only after a failure, or if a preloader's fork is the program. If the
        program cannot be executed, exits with a shell's exit code."""
        try:
            self._make_view()
            self._report_view()
            while self._next() != b"go":
                pass
            self._start_program(become)
        except program.NotRun as refusal:
            os._exit(refusal.code)
        except OSError as error:
            self._send("failed %s" % error)
        except Exception as error:  # Report every kind of error to the shim, which records it.
            self._send("failed %r" % error)

    def _next(self) -> bytes:
        """Return the shim's next line. Exits if the shim has exited."""
        while b"\n" not in self._inbox:
            data = self._control.recv(65536)
            if not data:
                os._exit(1)
            self._inbox += data
        line, _, self._inbox = self._inbox.partition(b"\n")
        return line

    def _send(self, text: str) -> None:
        self._control.sendall((text + "\n").encode("utf-8", "replace"))

    def _make_view(self) -> None:
        """Build the program's view of the machine. Raises OSError."""
        if self._refused is not None:
            raise self._refused
        plan, isolation = self._plan, self._plan.isolation
        # Connect to the preloader before the view hides the path of its socket.
        if plan.warm.preloader and self._is_namespaced:
            self._preloader = unix_sockets.try_connect(plan.warm.preloader)
        # The service's files are private, but programs must search the directories above visible paths.
        os.umask(0o022)
        if self._is_namespaced:
            self._view.find_hidden()
        while self._next() != b"claimed":
            pass
        self._groups.open_handles()
        program.make_directories(self._files, self._program.environ.get("PATH", os.defpath))
        if plan.program.python_template:
            program.install_python(self._files, plan.program.python_template)
        if self._is_namespaced:
            self._view.enter()
            if not (isolation.image and self._level == protocol.LEVEL_USER):
                # At other levels, `drop` forbids inspection after its last use of /proc.
                kernel.forbid_inspection()
        else:
            kernel.forbid_new_privileges()
        if isolation.image:
            self._fit_image()
        if self._level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT):
            # Make the program's user the owner of its outputs. Otherwise it could not open /dev/stdout.
            first = self._view.owners.first if self._view.owners is not None else 0
            user, group, _ = self._view.user
            for output in (self._program.output, self._program.errors):
                os.fchown(output, first + user, first + group)
        in_image = bool(isolation.image)
        self._connects = socket_calls.install(self._control, plan.network, in_image=in_image)

    def _fit_image(self) -> None:
        """Set the image's user and that user's home directory, and create the program's directories."""
        user, group, home = self._view.user
        self._program.environ.setdefault("HOME", home)
        # Resolve links inside the image now: a link into /proc could lead out of the image.
        self._program.directory = os.path.realpath(self._program.directory)
        mounts.make_directory(self._program.directory, 0o755, self._view.owners)
        mounts.make_directory(os.path.realpath("/tmp"), 0o1777, self._view.owners)
        # At level `user`, the namespace has only one user, root. So the image's user is not used there.
        if (user or group) and self._level != protocol.LEVEL_USER:
            self._program.user = user, group

    def _report_view(self) -> None:
        owner = self._view.owner
        home = self._view.user[2] if self._plan.isolation.image else None
        about = {"owned": owner is not None, "user": self._program.user, "home": home}
        names = _NAMESPACES if self._is_namespaced else ()
        handles = [os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in names]
        shown = handles if owner is None else [*handles, owner]
        text = b"made " + protocol.encode(about)
        unix_sockets.send(self._control, text, *shown)
        kernel.close_all(handles)

    def _start_program(self, become: Callable[[program.Program], None]) -> None:
        """Become the program. Returns only if a preloader's fork is the program. Raises NotRun, OSError."""
        plan, owner = self._plan, self._view.owner
        if plan.warm.preloader and self._is_namespaced:
            _limit_processes(plan)
            try:
                process = warm_start.become(
                    self._preloader,
                    self._program,
                    plan,
                    owner=owner,
                    connects=self._connects,
                    shim=self._control,
                )
            except warm_start.NotWarm as why:
                self._send("%s %s" % (warm_start.COLD, why))
            else:
                self._send("%s %d %s" % (warm_start.WARM, process, plan.warm.preloaded))
                return
        drop_rights(plan, owner)
        become(self._program)


def drop_rights(plan: protocol.LaunchDocument, owner: int | None) -> None:
    """Drop all rights that the program must not have. Called after the process has entered the program's
    view. Raises OSError. `owner`: file descriptor of the namespace of the program's own users; None =
    none."""
    if plan.isolation.level == protocol.LEVEL_SESSION:
        return
    levels.drop(plan.isolation.level, owner, bool(plan.isolation.image))
    _limit_processes(plan)


def _limit_processes(plan: protocol.LaunchDocument) -> None:
    if plan.limits.pids_limit and "pids" not in plan.limits.bases:
        program.limit_processes(plan.limits.pids_limit)


def enter(
    plan: protocol.LaunchDocument,
    groups: cgroups.ControlGroups,
    namespaces: list[int],
    owner: int | None,
    shim: socket.socket,
) -> None:
    """Enter the view of a main process in a fork of the shim, with no more rights than the program has.
    Raises OSError. `namespaces`: file descriptors of the view's namespaces. `owner`: as for `drop_rights`.
    `shim`: socket to which the file descriptor for socket calls is sent."""
    groups.open_handles()
    for handle in namespaces:
        kernel.enter_namespace(handle, 0)
    os.umask(0o022)
    kernel.join_new_keyring()
    if plan.isolation.level == protocol.LEVEL_SESSION:
        kernel.forbid_new_privileges()
    # The shim forbids inspection, which would deny this fork access to its own files in /proc.
    kernel.allow_inspection()
    socket_calls.install(shim, plan.network, in_image=bool(plan.isolation.image))
    drop_rights(plan, owner)


def _view(
    plan: protocol.LaunchDocument, slot: str, files: str, namespace: users.Users | None, devices: int | None
) -> view.View:
    binds = [(os.path.join(files, program.HYPERTUNE), view.HYPERTUNE)]
    if not plan.isolation.image:
        temporary = os.path.join(files, program.TEMPORARY)
        binds += [(temporary, "/tmp"), (temporary, "/var/tmp")]
    template = plan.program.python_template
    return view.View(
        plan.isolation,
        files=files,
        scratch=os.path.join(slot, "view"),
        layer=os.path.join(files, program.LAYER),
        binds=binds,
        replaced=[(os.path.join(files, program.PYTHON), template)] if template else (),
        namespace=namespace,
        devices=devices,
    )
