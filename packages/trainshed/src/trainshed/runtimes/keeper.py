"""Supervises one run of the installer, in a separate process, the keeper. The keeper starts the run according
to a `Confinement`, enforces its limits, and ends it.

The keeper runs as the service's user, outside the sandbox. It ends everything when the service closes the
connection `line` or exits. The keeper's child enters the view and the limits, checks the archives, and
becomes the installer (`become`).
"""

import os
import resource
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from trainshed.replica import protocol
from trainshed.replica.sandbox import call_filter, levels, socket_calls, users, view
from trainshed.replica.supervisor import memory_limit, program
from trainshed.replica.system import cgroups, kernel, loop, processes, trees, unix_sockets
from trainshed.runtimes import archives
from trainshed.runtimes.confinement import MAX_FILES, Confinement, without_secrets

_NOWHERE = "-"
"""Placeholder for the address of a replica. An installation has none, so no bind is redirected."""
_NO_PORT = 1 << 16
_CHECK_INTERVAL = 0.2
"""Seconds between two checks of the limits that the kernel does not enforce."""
_MEASUREMENT = 0.05
"""Maximum seconds of one measurement of the run's files."""
_PAUSE_FACTOR = 9
"""Duration of the pause after a measurement, as a multiple of the measurement's duration."""


class Keeper:
    """Runs and supervises one installation. `line`: a socket that is connected to the service."""

    def __init__(self, confinement: Confinement, command: list[str], line: socket.socket) -> None:
        terms = confinement.terms
        self._confinement, self._terms = confinement, terms
        self._command = command
        self._line = line
        self._name = confinement.name or f"trainshed-build-{os.getpid()}"
        self._groups = cgroups.ControlGroups(
            protocol.Limits(
                memory_limit=terms.memory_bytes,
                cpu_weight=terms.cpu_weight,
                pids_limit=terms.processes,
                bases=terms.bases,
                cgroup_name=self._name,
            )
        )
        self._loop = loop.Loop()
        self._inbox = b""
        self._verdict = ""
        self._first = 0
        self._status = -1
        self._extents: list[trees.TreeSize] = []
        self._size = self._names = 0

    def run(self) -> int:
        """Run the installation until it ends. Return the exit status of the command, in a shell's form if the
        command was killed."""
        children = kernel.child_signals()
        ours, theirs = socket.socketpair()
        kernel.adopt_orphans()
        try:
            self._start_installation(ours, theirs)
        except OSError as failure:
            self._verdict = self._report_start_failure(str(failure))
            self._status = 1 << 8
            self._seal()
            return 1
        theirs.close()
        held = memory_limit.MemoryLimit(self._groups, self._terms.memory_bytes, self._loop, self)
        self._loop.add(children, lambda: self._reap(children))
        self._loop.add(ours.fileno(), lambda: self._receive(ours))
        self._loop.add(self._line.fileno(), self._handle_closed_line)
        held.program_started()
        if self._confinement.until is not None:
            left = max(0.0, self._confinement.until - time.monotonic())
            limit = f"{self._terms.seconds:g} seconds"
            self._loop.after(left, lambda: self._end(limit, "it took longer"))
        self._loop.after(_CHECK_INTERVAL, self._measure_files)
        if self._terms.processes and self._terms.level == protocol.LEVEL_SESSION:
            self._loop.after(_CHECK_INTERVAL, self._count)
        while self._status < 0:
            self._loop.turn(None)
        if self._terms.level == protocol.LEVEL_SESSION:
            processes.end_descendants()
        self._receive(ours)
        held.close()
        _, kills = held.verdict(None)
        self._detect_kernel_limit(kills)
        self._seal()
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def main_process(self) -> int:
        return self._first

    def has_ended(self) -> bool:
        return self._status >= 0

    def _start_installation(self, ours: socket.socket, theirs: socket.socket) -> None:
        """Start the first process of the installation. Raises OSError if the level or the limits do not allow
        it."""
        terms = self._terms
        if terms.level not in levels.LEVELS:
            raise OSError(
                f"the isolation level {terms.level!r} does not exist; the levels are "
                f"{', '.join(levels.LEVELS)}"
            )
        if terms.level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT) and os.geteuid() != 0:
            raise OSError(f"the isolation level {terms.level!r} requires a service that runs as root")
        self._groups.create()
        self._groups.open_handles()
        levels.detach(terms.level)
        keeper = os.getpid()
        self._first = os.fork()
        if self._first == 0:
            try:
                ours.close()
                self._line.close()
                signal.set_wakeup_fd(-1)
                become(self._confinement, self._command, self._groups, theirs, keeper)
            except Exception as failure:
                theirs.sendall(_failure_message(failure))
            finally:
                os._exit(1)

    # --- while the installation runs ---

    def _reap(self, children: int) -> None:
        os.read(children, 4096)
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            if child == self._first:
                self._status = status

    def _receive(self, ours: socket.socket) -> None:
        """Receive the messages of the first process before it becomes the installer."""
        try:
            data, handles = unix_sockets.receive_available(ours)
        except (BlockingIOError, ConnectionResetError):
            return
        for handle in handles:
            self._answer_calls(handle)
        self._inbox += data
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "level":
                self._verdict = self._report_start_failure(rest)
            elif word == "archive":
                self._verdict = rest
        if not data:
            self._loop.drop(ours.fileno())

    def _answer_calls(self, handle: int) -> None:
        calls = socket_calls.SocketCalls(handle, _NOWHERE, _NO_PORT, {}, self._terms.kept_ports)

        def answer() -> None:
            if not calls.answer():
                self._loop.drop(calls.fileno())
                calls.close()

        self._loop.add(handle, answer)

    def _handle_closed_line(self) -> None:
        """End the installation, because the service has closed `line` or has exited."""
        self._loop.drop(self._line.fileno())
        self._kill()

    def _count(self) -> None:
        if self._status >= 0:
            return
        most = self._terms.processes
        if most is not None and len(processes.programs(os.getpid())) > most:
            self._end(f"{most} processes", "it had more")
        self._loop.after(_CHECK_INTERVAL, self._count)

    def _measure_files(self) -> None:
        if self._status >= 0:
            return
        if not self._extents:
            self._size = self._names = 0
            for place in (self._confinement.workspace, *self._confinement.writable):
                with suppress(OSError):
                    self._extents.append(trees.TreeSize(place))
        begin = time.monotonic()
        while self._extents and time.monotonic() - begin < _MEASUREMENT:
            if self._extents[-1].measure(_MEASUREMENT):
                seen = self._extents.pop()
                self._size, self._names = self._size + seen.found, self._names + seen.names
        size = self._size + sum(extent.found for extent in self._extents)
        most = self._terms.disk_bytes
        if most is not None and size > most:
            self._end(f"{most / 2**30:.3g} GiB", "it wrote more")
        elif self._names + sum(extent.names for extent in self._extents) > MAX_FILES:
            self._end(f"{MAX_FILES} files", "it made more")
        rest = (time.monotonic() - begin) * _PAUSE_FACTOR
        self._loop.after(max(rest, 0.0 if self._extents else _CHECK_INTERVAL), self._measure_files)

    # --- the end of the installation ---

    def _end(self, limit: str, what: str) -> None:
        if not self._verdict:
            self._verdict = self._limit_message(limit, what)
        self._kill()

    def _kill(self) -> None:
        """Kill the first process. All other processes of its namespace die with it."""
        processes.send(self._first, signal.SIGKILL)

    def _detect_kernel_limit(self, kills: int) -> None:
        """If a limit that the kernel enforces caused the end, record that limit as the reason. `kills`:
        number of processes that were killed at the memory limit."""
        if self._verdict or self._status == 0:
            return
        if kills:
            limit = f"{(self._terms.memory_bytes or 0) >> 20} MiB"
            self._verdict = self._limit_message(limit, "it used more memory")
        elif self._report_process_limit():
            limit = f"{self._terms.processes} processes and threads"
            self._verdict = self._limit_message(limit, "it started more")

    def _limit_message(self, limit: str, what: str) -> str:
        subject = self._confinement.subject
        return f"{subject} was ended: {what} than its limit of {limit}."

    def _report_start_failure(self, cause: str) -> str:
        level = self._terms.level
        return (
            f"{self._confinement.subject} cannot run at isolation level {level}, the level of programs here: "
            f"{cause}. A weaker level is not used. Fix the cause (`trainshed doctor` tries the levels; "
            "$TRAINSHED_CACHE moves the cache), or start the service with another level "
            "(--isolation)."
        )

    def _report_process_limit(self) -> bool:
        if "pids" not in self._terms.bases:
            return False
        path = os.path.join(self._terms.bases["pids"], self._name, "pids.events")  # noqa: PTH118 -- as all of /sys here
        return any(
            line.startswith(b"max ") and int(line.split()[1]) for line in processes.read(path).splitlines()
        )

    def _seal(self) -> None:
        cgroups.remove(self._groups.directories())
        try:
            self._line.sendall(self._verdict.encode(errors="replace"))
        except OSError:
            return  # The service has exited, so no process reads the reason.


def main() -> None:
    """Run the keeper with the arguments CONFINEMENT LINE COMMAND..., and exit with its status."""
    confinement = msgspec.json.decode(sys.argv[1], type=Confinement)
    handle = int(sys.argv[2])
    os.set_inheritable(handle, False)
    with socket.socket(fileno=handle) as line:
        sys.exit(Keeper(confinement, sys.argv[3:], line).run())


_FIRST_USER = 0x7FFE0000
"""First of the machine's user IDs for all installations. Installations are invisible to each other, and these
users own no files."""
_OWN_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
"""Signals that the interpreter ignores or the keeper handles. The installer gets their defaults."""


def become(
    confinement: Confinement,
    command: list[str],
    groups: cgroups.ControlGroups,
    keeper: socket.socket,
    parent: int,
) -> None:
    """Become the installer. Raises an exception on failure. `parent`: the keeper's process ID."""
    archives.load()
    level = confinement.terms.level
    # A separate session, so that a signal to the installer's group does not reach the keeper.
    os.setsid()
    groups.enter()
    kernel.join_new_keyring()
    count = _processes_of_user() if level == protocol.LEVEL_SESSION else 0
    place = Path.cwd()
    # The service's own files are private, but the installer's user must be able to search the directories
    # above visible paths.
    os.umask(0o022)
    if level != protocol.LEVEL_SESSION:
        if not confinement.network:
            kernel.unshare(kernel.CLONE_NEWNET)
        seen = _view(confinement)
        seen.find_hidden()
        seen.enter()
        kept = (confinement.workspace, *confinement.changes, *_OWN_PLACES)
        kernel.make_read_only("/", below=True, kept=kept)
        levels.drop(level, seen.owner, in_image=False)
    kernel.forbid_new_privileges()
    # Let the keeper handle the installation's bind calls, as a shim does for programs. If the kernel does not
    # support this, start without it.
    with suppress(OSError):
        socket_calls.send_handle(keeper, call_filter.install(connect=False))
    if level != protocol.LEVEL_SESSION:
        kernel.limit_program_capabilities(())
        kernel.set_capabilities(())
    _limit(confinement, count)
    # Call this after the change of user, because that change resets the setting.
    kernel.become_helper(parent)
    os.chdir(place)
    more = confinement.when_plain if archives.are_buildable(confinement.archives) else ()
    if confinement.corrected:
        more += archives.missing_requirements(archives.metadata_of_wheels(confinement.archives))
    for number in _DEFAULTS:
        signal.signal(number, signal.SIG_DFL)
    environ = without_secrets(os.environ) if "--offline" in more else dict(os.environ)
    os.execvpe(command[0], [*command, *more], environ)


def _failure_message(failure: Exception) -> bytes:
    """Return the message to the keeper about a failure, in the form `level TEXT` or `archive TEXT`."""
    word = "archive" if isinstance(failure, archives.ArchiveRejected) else "level"
    text = str(failure) if isinstance(failure, OSError | archives.ArchiveRejected) else repr(failure)
    return f"{word} {' '.join(text.split())}\n".encode(errors="replace")


def _view(confinement: Confinement) -> view.View:
    workspace, terms = confinement.workspace, confinement.terms
    mounts = [(path, path, True) for path in terms.visible]
    mounts += [(path, path, False) for path in (workspace, *confinement.changes)]
    mounts += [(path, path, True) for path in confinement.shown if not Path(path).is_dir()]
    isolation = protocol.Isolation(
        level=terms.level,
        hostname="installation",
        hidden=terms.hidden,
        covered=terms.covered,
        read_only=confinement.shown,
        mounts=mounts,
        users=(_FIRST_USER, users.COUNT) if terms.level == protocol.LEVEL_OWN else (),
        shm_bytes=terms.memory_bytes,
    )
    binds = [(f"{workspace}/tmp", "/tmp"), (f"{workspace}/var-tmp", "/var/tmp")]
    return view.View(
        isolation,
        files=workspace,
        scratch=f"{workspace}/view",
        binds=binds,
        lent=[(directory.base, directory.below, directory.place) for directory in confinement.lent],
    )


def _limit(confinement: Confinement, others: int) -> None:
    """Set the limits that the kernel applies to single processes or to a user. `others`: number of the user's
    other processes, which the kernel counts together with those of the installation."""
    terms = confinement.terms
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if terms.disk_bytes:
        _, ceiling = resource.getrlimit(resource.RLIMIT_FSIZE)
        is_bounded = ceiling != resource.RLIM_INFINITY
        most = min(terms.disk_bytes, ceiling) if is_bounded else terms.disk_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    if terms.processes and "pids" not in terms.bases:
        program.limit_processes(terms.processes + others)


def _processes_of_user() -> int:
    """Return the number of processes and threads of this user. They count together with those of the
    installation, unless the installation has its own user namespace."""
    count = 0
    for process in processes.parents():
        with suppress(OSError):  # Skip a process that has exited.
            if os.stat(f"/proc/{process}").st_uid == os.geteuid():  # noqa: PTH116 -- as all of /proc here
                count += len(os.listdir(f"/proc/{process}/task"))  # noqa: PTH208 -- likewise
    return count
