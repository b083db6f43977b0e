"""Runs uv, the installer of Python packages, as a process. It finds uv, gives it a clean environment and the
machine's indexes, and keeps its last lines for errors.

A shell supervises an ordinary run. A keeper supervises a confined run (`confinement`). Both exit together
with this process.
"""

import collections
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from trainshed.runtimes import output
from trainshed.runtimes.confinement import Confinement, read_verdict
from trainshed.runtimes.indexes import configures_indexes, index_environment
from trainshed.runtimes.output import BEAT, NOISE, Narration
from trainshed.runtimes.port import BuildFailed, ignore_progress
from trainshed.runtimes.stop import OVERSEEN, Stop, end_through, kill

_INHERITED_NAMES = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "CC", "CXX", "CFLAGS", "LDFLAGS")
_INHERITED_PREFIXES = ("UV_", "SSL_CERT_", "XDG_", "NETRC")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_LAST_LINES = 25
_NOT_COMPILED = r"[/\\]tests[/\\]"
_COMPILE = "import compileall, multiprocessing as m; m.set_start_method('spawn'); compileall.main()"
"""Code that compiles modules. Since Python 3.12, workers would otherwise fork from a server whose socket path
in a cache is too long."""
_GRACE = 10.0
"""Number of seconds after a run's time limit within which the keeper may end the run. After that, the keeper
is killed."""


class Execution(Struct, frozen=True):
    """A running process of the installer."""

    process: subprocess.Popen[bytes]
    #: File descriptor of the output, including standard error.
    output: int
    #: File descriptor that becomes readable when no more output is expected, although the output is still
    #: open; None = there is none.
    line: int | None
    #: Function that ends the run without waiting.
    end: Callable[[], None]
    #: Function that reads from the keeper the reason why the run was ended. Call it once, after the run has
    #: exited.
    verdict: Callable[[], str | None]
    #: Number of seconds before the run is killed; None = the caller decides.
    seconds: float | None


@contextmanager
def running(
    command: Sequence[str], environ: Mapping[str, str], cwd: Path, apart: Confinement | None
) -> Generator[Execution]:
    """Start a run and yield it. When the context exits, wait for the end of the run. Raises OSError."""
    if apart is None:
        overseen = ["/bin/sh", "-c", OVERSEEN, "install", *command]
        # Only this process has the write end of the run's input pipe. The input therefore ends if this
        # process dies, and the shell `OVERSEEN` then kills the run.
        with (
            # Use a new directory for each run, because uv leaves lock files in its temporary directory.
            tempfile.TemporaryDirectory(prefix=".tmp-", dir=cwd) as own,
            _popen(overseen, {**environ, "TMPDIR": own}, cwd, stdin=subprocess.PIPE) as process,
        ):
            assert process.stdout is not None
            output = process.stdout.fileno()
            yield Execution(process, output, None, lambda: kill(process), lambda: None, None)
        return
    ours, theirs = socket.socketpair()
    inner = apart.environ(dict(environ), offline="--offline" in command)
    handle = theirs.fileno()
    passed = (handle, *apart.handles)
    with (
        ours,
        _popen(
            apart.command(command, handle), inner, cwd, stdin=subprocess.DEVNULL, passed=passed
        ) as process,
    ):
        theirs.close()
        assert process.stdout is not None
        left = None if apart.until is None else max(0.0, apart.until - time.monotonic()) + _GRACE
        yield Execution(
            process,
            process.stdout.fileno(),
            ours.fileno(),
            lambda: end_through(ours, process),
            lambda: read_verdict(ours),
            left,
        )


def _popen(
    command: list[str], environ: Mapping[str, str], cwd: Path, *, stdin: int, passed: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        cwd=cwd,
        pass_fds=passed,
        # Use a separate group, because setup scripts start programs and all of them must be stoppable.
        start_new_session=True,
    )


_CORRECTIONS: Final = Path(__file__).with_name("corrections.toml").read_text()
KILLED: Final = "The installer was killed from outside"
_FULL: Final = "No space left"
_UNSEEN: Final = "not found at: file://"


class InstallFailed(Exception):
    """uv exited with an error. `lines`: the last lines of its output. `is_final`: uv was ended, or not
    started, for a reason that applies to every way of installing. The last line contains the reason."""

    def __init__(self, lines: tuple[str, ...], *, is_final: bool = False) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.is_final = is_final

    @property
    def is_machine_fault(self) -> bool:
        """Whether the cause is this machine or its network, not the requirements."""
        text = str(self)
        if self.is_final:
            return _FULL in text
        signs = ("error sending request", "Failed to fetch", "dns error", _FULL, KILLED, "timed out")
        return any(sign in text for sign in signs)

    @property
    def remedy(self) -> str:
        """Advice for a failure that the machine or its network caused."""
        if _FULL in str(self):
            return (
                "A disk is full. Free space (`trainshed runtimes gc` clears the cache), or choose"
                " another cache directory with $TRAINSHED_CACHE."
            )
        if KILLED in str(self):
            return "Check the kernel's log for a lack of memory, and submit the job again when more is free."
        return "Check that this machine can reach the package index (pip's or uv's settings)."

    @property
    def correction(self) -> str:
        """Advice for a failure that the requirements caused."""
        text = self._correction()
        if _UNSEEN in str(self):
            text += " Of this machine's files, an installation sees only those in the setting visible_paths."
        return text

    def _correction(self) -> str:
        lines = str(self)
        if absent := _ABSENT.search(lines):
            return (
                f"The package index has no {absent[1]}. Correct the name in your requirements "
                f"({_LISTS}), and submit the job again."
            )
        if "No solution found" in lines:
            return (
                "No set of versions fits these requirements and this Python; see the lines above. "
                f"Change or remove a version ({_LISTS}), and submit the job again."
            )
        if unbuilt := _UNBUILT.search(lines):
            return (
                f"{unbuilt[1]} has no wheel for this Python, and its setup script failed. If it is "
                f"a requirement ({_LISTS}), choose a version that has a wheel. If it is your own "
                "package, correct its setup script. Then submit the job again."
            )
        return "Correct the package (its setup script and its requirements) and submit the job again."


_LISTS: Final = (
    "--requirements or requirements.txt of trainshed run, requirements=[…] of the SDK, install_requires "
    "of a package"
)
_ABSENT: Final = re.compile(r"\b([A-Za-z0-9._-]{1,100}) was not found in the package registry")
_UNBUILT: Final = re.compile(r"Failed to (?:download and )?build `?([A-Za-z0-9._-]{1,100})==")
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)")


class Installer:
    """Runs uv for the runtimes. In directories to which users' scripts may write, uv copies files instead of
    linking them. So no job can change uv's own cache."""

    def __init__(
        self,
        cache: Path,
        environ: Mapping[str, str] = os.environ,
        binary: str | None = None,
        limit_seconds: float = 1800,
    ) -> None:
        """`cache`: uv's download cache, unless UV_CACHE_DIR is set. `limit_seconds`: time limit of a run that
        is not confined."""
        self._limit_seconds = limit_seconds
        self._binary = binary
        # Users' setup scripts receive these variables, so the service's own variables, which may contain
        # secrets, are left out.
        kept = {
            name: value
            for name, value in environ.items()
            if name in _INHERITED_NAMES or name.startswith(_INHERITED_PREFIXES) or name.lower() in _PROXIES
        }
        self._environ = {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
        self._environ.setdefault("UV_CACHE_DIR", str(cache))
        self._owns_cache = self.cache == cache
        self._environ.update(index_environment(environ))
        # uv must use the given interpreter. It must neither download one nor follow the caller's environment.
        self._environ.update(UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1")
        self._environ.pop("UV_PYTHON", None)
        # Pass this setting as a flag, because uv has no variable for it.
        self._flags = ("--no-index",) if self._environ.pop("UV_NO_INDEX", "") else ()
        #: Whether uv's or pip's settings on this machine contain a source of packages.
        self.has_indexes = configures_indexes(environ)
        #: Stops all runs when the service exits.
        self.closing = Stop()

    def close(self) -> None:
        """Stop running installations when the service exits. Their builds fail and leave no files."""
        self.closing.request()

    @property
    def needs(self) -> tuple[str, ...]:
        """Files that an installation reads: uv itself, and its settings of package sources. Raises
        BuildFailed if uv does not exist."""
        variables = ("UV_CONFIG_FILE", "UV_FIND_LINKS", "SSL_CERT_FILE", "SSL_CERT_DIR")
        values = ",".join(self._environ.get(name, "") for name in (*variables, "UV_INDEX"))
        places = [place.removeprefix("file://") for place in re.split(r"[,\s]+", values)]
        files = [place for place in places if place.startswith("/") and Path(place).exists()]
        return (self._find(), *files)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Files that contain this user's uv settings and passwords of indexes. uv may read them, but users'
        scripts may not."""
        home = Path(self._environ.get("HOME") or "/nonexistent")
        settings = Path(self._environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv"
        netrc = self._environ.get("NETRC") or str(home / ".netrc")
        return tuple(path for path in (str(settings), netrc) if Path(path).exists())

    @property
    def cache(self) -> Path:
        return Path(self._environ["UV_CACHE_DIR"])

    def clear_cache(self) -> None:
        """Empty uv's cache. Blocks while another uv process uses it. Raises InstallFailed, BuildFailed."""
        self.run([self._find(), "cache", "clean"], self.cache.parent)

    def install(
        self,
        python: Path,
        target: Path,
        what: Sequence[str],
        progress: Callable[[str], None],
        *,
        stop: Stop | None = None,
        apart: Confinement | None = None,
        linked: bool = False,
    ) -> None:
        """Install `what` (requirements, files and flags) into the directory `target` for the interpreter
        `python`. Blocks. Raises InstallFailed, or BuildFailed if uv is missing or the build was stopped.

        - `stop` ends the installation early.
        - `apart`: view and limits of the installation; None = not confined.
        - `linked`: files may be hard links into uv's cache, which saves disk space. Only for a directory to
          which no other program writes.
        """
        command = [self._find(), "pip", "install", "--python", str(python), "--target", str(target)]
        # If an operator configured the cache, copy its files: the cache has other users as well, and hard
        # links would make its files read-only.
        mode = "hardlink" if linked and self._owns_cache else "copy"
        command += [*self._flags, "--link-mode", mode, *what]
        if self._owns_cache:
            # Close the cache to other users, because write access to uv's lock files must be limited.
            self.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Ignore the error if the cache belongs to another user, because only its owner can change its
            # mode.
            with suppress(PermissionError):
                self.cache.chmod(0o700)
        doing = "finding out which packages are needed"
        with _settings(target.parent):
            self._execute(command, target.parent, progress, doing, stop=stop, apart=apart)
        (target / ".lock").unlink(missing_ok=True)

    def newest(
        self, python: str, requirements: Sequence[str], place: Path, stop: Stop | None = None
    ) -> dict[str, str]:
        """Return the newest version of each requirement that has a wheel for Python `major.minor` = `python`,
        by the distribution's name. The requirements of these versions are ignored. Blocks. Raises
        InstallFailed, BuildFailed.

        `place`: an empty directory for uv's input and output.
        """
        (place / "asked.in").write_text("".join(f"{requirement}\n" for requirement in requirements))
        # Use the service's own interpreter, because any other interpreter runs startup code of packages.
        command = [self._find(), "pip", "compile", "--python", sys.executable, "--no-deps"]
        command += ["--python-version", python]
        command += [*self._flags, "--only-binary", ":all:", "--no-header", "--no-annotate"]
        command += ["asked.in"]
        with _settings(place):
            self._execute([*command, "-o", "answer.txt"], place, ignore_progress, quiet=True, stop=stop)
        pins = (_PIN.match(line) for line in (place / "answer.txt").read_text().splitlines())
        return {pin["name"]: pin["version"] for pin in pins if pin}

    def wheel(self, python: Path, source: Path, *, apart: Confinement, stop: Stop | None) -> None:
        """Build a wheel from a source distribution, in `apart.wheels`. The parameters are as for `install`.
        Blocks. Raises InstallFailed, BuildFailed."""
        command = [self._find(), "build", "--wheel", "--python", str(python)]
        command += [*self._flags, "--out-dir", str(apart.wheels), str(source)]
        self._execute(command, apart.wheels, ignore_progress, stop=stop, apart=apart)

    def run(
        self,
        command: Sequence[str],
        cwd: Path,
        progress: Callable[[str], None] | None = None,
        doing: str = "working",
    ) -> None:
        """Run a program in the installer's clean environment. Blocks. Raises InstallFailed with the program's
        last lines, or BuildFailed if the service stops. `progress` regularly receives the activity `doing`,
        but not the output."""
        self._execute(command, cwd, progress or ignore_progress, doing, quiet=True)

    def compile(
        self,
        python: Path,
        directory: Path,
        progress: Callable[[str], None] = ignore_progress,
        apart: Confinement | None = None,
        *,
        in_background: bool = False,
    ) -> None:
        """Compile the modules below `directory`, except test suites, which are half of the work and never
        imported. Blocks. Modules that cannot be compiled are ignored. `in_background`: use the lowest
        priority. Raises BuildFailed if the service stops, InstallFailed if a confined run was ended."""
        progress("Compiling the packages to bytecode.")
        program = f"import os; os.nice(19); {_COMPILE}" if in_background else _COMPILE
        command = [str(python), "-I", "-c", program, "-qq", "-j", "0", "-x", _NOT_COMPILED]
        command.append(str(directory))
        try:
            self._execute(command, directory, progress, "compiling", quiet=True, apart=apart)
        except InstallFailed as failure:
            # Ignore errors: packages contain files that are not modules (templates, old syntax). Their import
            # would fail anyway.
            if failure.is_final:
                raise

    def _execute(
        self,
        command: Sequence[str],
        cwd: Path,
        tell: Callable[[str], None],
        doing: str = "working",
        *,
        quiet: bool = False,
        stop: Stop | None = None,
        apart: Confinement | None = None,
    ) -> None:
        stop = stop or Stop()
        last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        with running(command, self._environ, cwd, apart) as execution:
            process = execution.process
            stops = (stop, self.closing)
            for ending in stops:
                ending.register(process, execution.end)
            seconds = execution.seconds or self._limit_seconds
            limit = threading.Timer(seconds, kill, [process])
            limit.daemon = True
            limit.start()
            narration = Narration(tell, doing, quiet=quiet)
            try:
                for line in output.lines(execution.output, BEAT, execution.line):
                    if line is None:
                        narration.add_silence()
                    elif not line.startswith(NOISE):
                        last.append(line)
                        narration.add_line(line)
                narration.end()
            finally:
                process.wait()
                limit.cancel()
                for ending in stops:
                    ending.unregister(process)
            verdict = execution.verdict()
        self.closing.check()
        if stop.is_asked:
            raise BuildFailed("The build was stopped, because no job waits for it any more.")
        if verdict:
            raise InstallFailed((*last, verdict), is_final=True)
        if process.returncode == 128 + signal.SIGKILL:
            last.append(f"{KILLED}, perhaps by the kernel because of a lack of memory.")
        if process.returncode == -signal.SIGKILL:
            last.append(f"Stopped from outside, or after the limit of {seconds:g} seconds.")
        if process.returncode:
            raise InstallFailed(tuple(last))

    def _find(self) -> str:
        if not self._binary:
            binary = _find_packaged() or shutil.which("uv")
            if not binary:
                raise BuildFailed(
                    "The uv program was not found, and runtimes are built with it. It comes with the "
                    "service: pip install 'trainshed[service]', or put uv on PATH."
                )
            self._binary = binary
        return self._binary


@contextmanager
def _settings(place: Path) -> Generator[None]:
    """Write uv's settings into its working directory, for as long as the context is open. uv reads these
    settings in addition to those of the machine, unless UV_CONFIG_FILE is set. An empty pyproject.toml hides
    the settings of a project in a parent directory."""
    settings = {"uv.toml": _CORRECTIONS, "pyproject.toml": ""}
    try:
        for name, text in settings.items():
            (place / name).write_text(text)
        yield
    finally:
        for name in settings:
            (place / name).unlink(missing_ok=True)


def _find_packaged() -> str | None:
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        return None
