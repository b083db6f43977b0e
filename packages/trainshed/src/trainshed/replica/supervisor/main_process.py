"""Runs the process that becomes a replica's program: builds its view of the machine, drops all rights that
the program must not have, and executes it (`start`).

The shim has forked it, and it has the shim's view of the machine until its own is built. Shells enter that
view later (`enter`). If a preloader's fork becomes the program, this process only passes the view to it.
It speaks with the shim, one line per message, over a socket pair that closes when it executes the program.
Shim to main process:
- the order, as the zygote gave it to the shim
- `claimed`: the slot is the shim's, and its control groups are made; until then nothing of it is touched
- `go`: run the program
Main process to shim:
- `asked`, with a file handle on which the program's socket calls are asked about (`socket_calls`)
- `made VIEW`: the view is made, and this process waits; with handles of the namespaces that shells enter, the
  last of which is that of the program's own users, if it has some. VIEW: {"owned": whether it is there,
  "user": [user, group] if it is another's inside, else null, "home": of an image's program, else null}
- of a program that was to begin in a fork `warm PID WHAT`, which is the main process from here on, or
  `cold WHY`
- in place of the program `failed TEXT`
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
    """The handle of a main process: it is forked immediately, waits for an order, and ends with the shim."""

    def __init__(
        self, level: str, namespace: users.Users | None, become: Callable[[program.Program], None]
    ) -> None:
        """`level`: of its isolation. `namespace`: of the program's own users, if it was created in advance.
        `become`: turns it into its program. Raises OSError."""
        #: Read end of the pipe for the program's standard output.
        self.output, output = os.pipe()
        #: Read end of the pipe for its standard error.
        self.errors, errors = os.pipe()
        #: The shim's end of the socket pair.
        self.control, control = socket.socketpair()

        def begin() -> None:
            kernel.name_process("ts-program")
            self.control.close()
            kernel.close_all([self.output, self.errors])
            _Beginning(control, (output, errors), level, namespace).run(become)

        #: Its process id.
        self.process = kernel.helper(begin)
        for theirs in (control.detach(), output, errors):
            os.close(theirs)

    def say(self, line: bytes) -> None:
        try:
            self.control.sendall(line + b"\n")
        except OSError:
            return  # It is dead, which the shim detects.

    def await_program(self, order: bytes) -> int:
        """Send an order for a program without a shim, and wait until this process has become the program.
        Returns the handle for its socket calls, or -1 without such calls. Raises OSError."""
        for line in (order.rstrip(b"\n"), b"claimed", b"go"):
            self.say(line)
        lines, handles = b"", list[int]()
        while (received := unix_sockets.receive_beside(self.control))[0]:
            lines += received[0]
            handles += received[1]
        for line in lines.splitlines():
            if line.startswith(b"failed "):
                raise OSError(line.partition(b" ")[2].decode("utf-8", "replace"))
        return handles[0] if lines.startswith(b"asked\n") else -1


def program_of(
    slot: str, plan: protocol.LaunchDocument, groups: cgroups.ControlGroups, outputs: Sequence[int]
) -> program.Program:
    """Return the program of a launch document. `outputs`: handles of its standard output and error."""
    if plan.limits.stall_after:
        # Makes a Python print its stacks on SIGABRT (`stall`).
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


class _Beginning:
    """The work of the main process before it is the program."""

    def __init__(
        self,
        control: socket.socket,
        outputs: tuple[int, int],
        level: str,
        namespace: users.Users | None,
    ) -> None:
        """Waits for the order."""
        self._control = control
        self._inbox = b""
        self._level = level
        self._is_namespaced = level != protocol.LEVEL_SESSION
        self._refused: OSError | None = None
        devices: int | None = None
        # Work that does not depend on the replica.
        try:
            kernel.leave_keyring()
            if self._is_namespaced:
                view.detach()
                devices = view.own_devices()
        except OSError as error:
            self._refused = error
        slot, self._plan = protocol.ordered(self._next())
        self._files = os.path.join(slot, protocol.FILES)
        self._groups = cgroups.ControlGroups(self._plan.limits)
        self._program = program_of(slot, self._plan, self._groups, outputs)
        self._view = _view(self._plan, slot, self._files, namespace, devices)
        #: The connection to the preloader that is to fork the program, if one listened.
        self._preloader: socket.socket | None = None
        #: Whether the shim handles calls of connect; None = it handles no calls.
        self._connects: bool | None = None

    def run(self, become: Callable[[program.Program], None]) -> None:
        """Become the program; return if it is not run, or another process is it. If it cannot be executed,
        this process exits with its exit code."""
        try:
            self._make_view()
            self._say_made()
            while self._next() != b"go":
                pass
            self._begin(become)
        except program.NotRun as refusal:
            os._exit(refusal.code)
        except OSError as error:
            self._say("failed %s" % error)
        except Exception as error:  # The shim records it; this process has no other way to report.
            self._say("failed %r" % error)

    def _next(self) -> bytes:
        """Return the shim's next line; exit if the shim is gone."""
        while b"\n" not in self._inbox:
            data = self._control.recv(65536)
            if not data:
                os._exit(1)
            self._inbox += data
        line, _, self._inbox = self._inbox.partition(b"\n")
        return line

    def _say(self, text: str) -> None:
        self._control.sendall((text + "\n").encode("utf-8", "replace"))

    def _make_view(self) -> None:
        """Build the program's whole view. Raises OSError."""
        if self._refused is not None:
            raise self._refused
        plan, isolation = self._plan, self._plan.isolation
        # Before anything is hidden, including the path of the preloader's socket.
        if plan.warm.preloader and self._is_namespaced:
            self._preloader = unix_sockets.connected(plan.warm.preloader)
        # The service's own files are private, but all users may traverse the directories on the way to
        # visible paths.
        os.umask(0o022)
        if self._is_namespaced:
            self._view.look()
        while self._next() != b"claimed":
            pass
        self._groups.hold()
        program.make_directories(self._files, self._program.environ.get("PATH", os.defpath))
        if plan.program.python_template:
            program.install_python(self._files, plan.program.python_template)
        if self._is_namespaced:
            self._view.enter()
            if not (isolation.image and self._level == protocol.LEVEL_USER):
                kernel.forbid_inspection()  # There, `drop` does it, after its last use of /proc.
        else:
            kernel.forbid_new_privileges()
        if isolation.image:
            self._fit_image()
        if self._level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT):
            # The program's user could not open /dev/stdout otherwise.
            first = self._view.owners.first if self._view.owners is not None else 0
            user, group, _ = self._view.user
            for output in (self._program.output, self._program.errors):
                os.fchown(output, first + user, first + group)
        in_image = bool(isolation.image)
        self._connects = socket_calls.be_asked(self._control, plan.network, in_image=in_image)

    def _fit_image(self) -> None:
        """Apply the image's own files: its user and that user's home directory."""
        user, group, home = self._view.user
        self._program.environ.setdefault("HOME", home)
        # Resolved inside the image: followed, a link into /proc would leave it.
        self._program.directory = os.path.realpath(self._program.directory)
        mounts.make_directory(self._program.directory, 0o755, self._view.owners)
        mounts.make_directory(os.path.realpath("/tmp"), 0o1777, self._view.owners)
        # At level `user` there is only one user, who is root inside the namespace.
        if (user or group) and self._level != protocol.LEVEL_USER:
            self._program.user = user, group

    def _say_made(self) -> None:
        owner = self._view.owner
        home = self._view.user[2] if self._plan.isolation.image else None
        about = {"owned": owner is not None, "user": self._program.user, "home": home}
        names = _NAMESPACES if self._is_namespaced else ()
        handles = [os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in names]
        shown = handles if owner is None else [*handles, owner]
        text = b"made " + protocol.encode(about)
        unix_sockets.send(self._control, text, *shown)
        kernel.close_all(handles)

    def _begin(self, become: Callable[[program.Program], None]) -> None:
        """Become the program; return if a preloader's fork is it. Raises NotRun, OSError."""
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
                self._say("%s %s" % (warm_start.COLD, why))
            else:
                self._say("%s %d %s" % (warm_start.WARM, process, plan.warm.preloaded))
                return
        settle(plan, owner)
        become(self._program)


def settle(plan: protocol.LaunchDocument, owner: int | None) -> None:
    """Drop, inside the view, the rights that the program must not have. Raises OSError. `owner`: handle of
    the namespace of its own users, None = none."""
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
    """Enter, in a fork of the shim, the view of a main process, with no more rights than its program. Raises
    OSError. `namespaces`: their handles; `owner`: as for `settle`. `shim`: receives the handle for socket
    calls."""
    groups.hold()
    for handle in namespaces:
        kernel.enter_namespace(handle, 0)
    os.umask(0o022)
    kernel.leave_keyring()
    if plan.isolation.level == protocol.LEVEL_SESSION:
        kernel.forbid_new_privileges()
    # The shim's own protection would keep this process from its files in /proc.
    kernel.allow_inspection()
    socket_calls.be_asked(shim, plan.network, in_image=bool(plan.isolation.image))
    settle(plan, owner)


def _view(
    plan: protocol.LaunchDocument,
    slot: str,
    files: str,
    namespace: users.Users | None,
    devices: int | None,
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
