"""Prepares and starts a replica's program: creates its directories, copies its Python environment, executes
it, and sends it signals. The shim sends the signals; the main process does everything else. Runs on Python
3.6."""

import contextlib
import errno
import os
import resource
import shlex
import signal
import stat
from typing import NoReturn

from trainshed.replica.system import cgroups, processes

WORK = "work"
TEMPORARY = "tmp"
"""Name of the directory that the program sees as /tmp and as /var/tmp."""
PYTHON = "python"
"""Name of the program's own copy of its Python environment's template. It contains packages that the program
installs."""
HYPERTUNE = "hypertune"
LAYER = "layer"
"""Name of the directory with the program's changes of its container image."""

EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126

# Signals that the interpreter ignores or that this service handles. The program must start with the default
# actions of these signals.
_IGNORED_OR_HANDLED = (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM)


def make_directories(files: str, path: str) -> None:
    """Create the program's directories, and the file that sets PATH to `path` in its login shells (`bash
    -lc`), because /etc/profile changes PATH there.

    Files of the replica's earlier runs remain (spec/failures#lost-replicas). `files` itself is the home
    directory: each further directory would slow down every start.
    """
    for name in ("", WORK, TEMPORARY, HYPERTUNE):
        directory = os.path.join(files, name)
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            if _remove_non_directory(directory):
                os.mkdir(directory, 0o700)
    profile = os.path.join(files, ".profile")
    with contextlib.suppress(FileExistsError), open(profile, "xb") as file:
        file.write(os.fsencode("PATH=%s\n" % shlex.quote(path)))


def _remove_non_directory(path: str) -> bool:
    """If `path` is not a directory, remove it and return True. Otherwise return False. `path` may be a link
    of the program. This process may read all files, so following the link would give the program access to
    the link's target (path traversal)."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        return False
    os.unlink(path)
    return True


def limit_processes(limit: int) -> None:
    """Limit the processes and threads of the user to `limit`. Used if no control group counts them."""
    _, ceiling = resource.getrlimit(resource.RLIMIT_NPROC)
    if ceiling != resource.RLIM_INFINITY:
        limit = min(limit, ceiling)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def install_python(files: str, template: str) -> None:
    """Copy the template of a Python environment into the replica's directory, unless an earlier run
    (incarnation) of the replica has copied it."""
    target = os.path.join(files, PYTHON)
    if not os.path.lexists(target) or _remove_non_directory(target):
        # Create the copy outside `files`, where the program cannot place links.
        draft = os.path.join(os.path.dirname(files), PYTHON)
        copy_tree(template, draft)
        os.rename(draft, target)


def copy_tree(source: str, target: str) -> None:
    """Copy directories, small files and links. The owner gets write permission for the copied files. An
    incomplete earlier copy is completed. Each start of a program waits for this function, so it makes only
    necessary system calls."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(target)
    with os.scandir(source) as entries:
        for entry in entries:
            copy = "%s/%s" % (target, entry.name)
            if entry.is_symlink():
                with contextlib.suppress(FileExistsError):
                    os.symlink(os.readlink(entry.path), copy)
            elif entry.is_dir():
                copy_tree(entry.path, copy)
            else:
                content = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
                status = os.fstat(content)
                mode = stat.S_IMODE(status.st_mode) | stat.S_IWUSR
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                copied = os.open(copy, flags, mode)
                os.write(copied, os.read(content, status.st_size))
                os.close(content)
                os.close(copied)


def signal_group(main: int, number: int) -> None:
    """Send signal `number` to the main process, which is not reaped yet, and to its process group."""
    try:
        os.killpg(main, number)
    except (ProcessLookupError, PermissionError):
        processes.send(main, number)  # The main process has no group of its own yet.


def is_on_path(name: str, environ: "dict[str, str]") -> bool:
    """Whether the environment's PATH contains an executable program of that name."""
    places = environ.get("PATH", os.defpath).split(":")
    return any(os.access(os.path.join(place or ".", name), os.X_OK) for place in places)


class NotRun(Exception):
    """Raised if the program could not be executed. Its error output contains the reason. `code`: the exit
    code that a shell would return."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Program:
    """A program to be run: its arguments, environment, working directory, outputs and control groups."""

    def __init__(
        self,
        *,
        argv: "list[str]",
        environ: "dict[str, str]",
        directory: str,
        output: int,
        errors: int,
        groups: cgroups.ControlGroups,
        streams: "int | None" = None,
    ) -> None:
        """`directory`: the working directory, which must exist when the program starts. `streams`: a file
        descriptor that is both output and standard input, for a process that already leads a session; None
        for other programs."""
        #: The program and its arguments.
        self.argv = argv
        self.environ = environ
        #: Its working directory.
        self.directory = directory
        self.output = output
        self.errors = errors
        #: (user, group) of the program; None = the user and group of this process.
        self.user: "tuple[int, int] | None" = None
        self.groups = groups
        self._input = streams

    def become(self) -> "NoReturn":
        """Turn this process into the program. Raises NotRun, OSError (control groups)."""
        self.groups.enter()
        if self._input is None:
            os.setsid()
            self._input = os.open(os.devnull, os.O_RDONLY)
        for number, stream in enumerate((self._input, self.output, self.errors)):
            os.dup2(stream, number)
        os.umask(0o022)
        for number in _IGNORED_OR_HANDLED:
            signal.signal(number, signal.SIG_DFL)
        self.switch_user()
        self._execute()

    def switch_user(self) -> None:
        """Change to the program's working directory and user. Raises OSError."""
        os.chdir(self.directory)
        if self.user is not None:
            user, group = self.user
            os.setgroups([group])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)

    def _execute(self) -> "NoReturn":
        """Execute the first executable file on the program's PATH, like a shell. Raises NotRun."""
        name, path = self.argv[0], self.environ.get("PATH", os.defpath)
        places = [name] if "/" in name else [os.path.join(d or ".", name) for d in path.split(":")]
        refusal = errno.ENOENT
        # `os.execvpe` would import a module that an image may lack.
        for place in places if name else ():
            try:
                os.execve(place, self.argv, self.environ)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    refusal = error.errno or errno.EACCES
        if refusal == errno.ENOENT:
            text = "%s: command not found; looked in %s" % (name or "''", path)
            if "/" in name:
                text = (
                    "%s: the file, the interpreter in its #! line, or its loader does not exist. Check the "
                    "path, and whether the #! line ends with a Windows line end" % name
                )
            code = EXIT_NOT_FOUND
        else:
            text = "%s: cannot be executed: %s" % (name, os.strerror(refusal))
            code = EXIT_NOT_EXECUTABLE
        os.write(self.errors, (text + "\n").encode("utf-8", "replace"))
        raise NotRun(code)
