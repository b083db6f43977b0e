"""Runs uv as a process: finds it, gives it a clean environment and the machine's indexes, keeps its last
lines for errors.

A run is supervised by a shell, or confined by a keeper (`confinement`); both end with this process.
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
from trainshed.runtimes.indexes import index_environment, names_indexes
from trainshed.runtimes.output import BEAT, NOISE, Narration
from trainshed.runtimes.port import BuildFailed, unheard
from trainshed.runtimes.stop import OVERSEEN, Stop, end_by, kill

_PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "CC", "CXX", "CFLAGS", "LDFLAGS")
_PASSED_ON_PREFIXES = ("UV_", "SSL_CERT_", "XDG_", "NETRC")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_LAST_LINES = 25
_NOT_COMPILED = r"[/\\]tests[/\\]"
_COMPILE = "import compileall, multiprocessing as m; m.set_start_method('spawn'); compileall.main()"
"""Since Python 3.12 a server would fork its workers, whose socket in a cache has too long a name."""
_LATE = 10.0
"""Seconds beyond its limit that a keeper may take to end everything."""


class Execution(Struct, frozen=True):
    """A run of the installer that has begun."""

    process: subprocess.Popen[bytes]
    #: Handle of its output, standard error included.
    output: int
    #: Handle that is readable once no more output is expected; None = there is none.
    line: int | None
    #: Ends the run, without waiting for that.
    end: Callable[[], None]
    #: Reads from its keeper why it was ended; call it once, after the end.
    verdict: Callable[[], str | None]
    #: Seconds after which it is killed if nothing else has ended it; None = its caller decides.
    seconds: float | None


@contextmanager
def begun(
    command: Sequence[str], environ: Mapping[str, str], cwd: Path, apart: Confinement | None
) -> Generator[Execution]:
    """Start a run, and wait for its end when the context is left. Raises OSError."""
    if apart is None:
        overseen = ["/bin/sh", "-c", OVERSEEN, "install", *command]
        # We alone have the other end of its input: it closes when this process ends, in whatever way.
        with (
            # uv leaves its locks there.
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
        left = None if apart.until is None else max(0.0, apart.until - time.monotonic()) + _LATE
        yield Execution(
            process,
            process.stdout.fileno(),
            ours.fileno(),
            lambda: end_by(ours, process),
            lambda: read_verdict(ours),
            left,
        )


def _popen(
    command: list[str],
    environ: Mapping[str, str],
    cwd: Path,
    *,
    stdin: int,
    passed: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        cwd=cwd,
        pass_fds=passed,
        # A group of its own, because setup scripts start programs, and all of them must be stoppable.
        start_new_session=True,
    )


_CORRECTIONS: Final = Path(__file__).with_name("corrections.toml").read_text()
KILLED: Final = "The installer was killed from outside"
_FULL: Final = "No space left"
_UNSEEN: Final = "not found at: file://"


class InstallFailed(Exception):
    """uv ended with an error; `lines` are its last ones. `is_final`: it was ended, or not begun, for a reason
    that applies to every way of installing; the last line says which."""

    def __init__(self, lines: tuple[str, ...], *, is_final: bool = False) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.is_final = is_final

    @property
    def is_machine_trouble(self) -> bool:
        """Whether the machine or its network is to blame, rather than what was asked for."""
        text = str(self)
        if self.is_final:
            return _FULL in text
        signs = (
            "error sending request",
            "Failed to fetch",
            "dns error",
            _FULL,
            KILLED,
            "timed out",
        )
        return any(sign in text for sign in signs)

    @property
    def remedy(self) -> str:
        """What to do if the machine or its network is to blame."""
        if _FULL in str(self):
            return (
                "A disk is full: make room (`trainshed runtimes gc` clears the cache), or choose"
                " another cache directory with $TRAINSHED_CACHE."
            )
        if KILLED in str(self):
            return "The kernel's log says whether memory ran out; submit the job again when there is more."
        return "Check that the package index can be reached from this machine (pip's or uv's settings)."

    @property
    def correction(self) -> str:
        """What to do if what was asked for is to blame."""
        text = self._correction()
        if _UNSEEN in str(self):
            text += (
                " Of this machine's files an installation sees those alone "
                "that the setting visible_paths names."
            )
        return text

    def _correction(self) -> str:
        lines = str(self)
        if absent := _ABSENT.search(lines):
            return (
                f"The package index has no {absent[1]}. Correct the name where it is listed "
                f"({_LISTS}), and submit the job again."
            )
        if "No solution found" in lines:
            return (
                "No set of versions fits these requirements and this Python; the lines above show "
                f"which. Change or remove a version ({_LISTS}), and submit the job again."
            )
        if unbuilt := _UNBUILT.search(lines):
            return (
                f"{unbuilt[1]} has no wheel for this Python, and its setup script failed. If it is "
                f"a requirement ({_LISTS}), choose a version that has a wheel. If it is your own "
                "package, correct its setup script. Then submit the job again."
            )
        return (
            "Correct the package (its setup script and its requirements) and submit the job again."
        )


_LISTS: Final = (
    "--requirements or requirements.txt of trainshed run, requirements=[…] of the SDK, install_requires "
    "of a package"
)
_ABSENT: Final = re.compile(r"\b([A-Za-z0-9._-]{1,100}) was not found in the package registry")
_UNBUILT: Final = re.compile(r"Failed to (?:download and )?build `?([A-Za-z0-9._-]{1,100})==")
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)")


class Installer:
    """uv, as the runtimes use it. Where scripts of users may write, files are copies, so that no job can
    change uv's own cache."""

    def __init__(
        self,
        cache: Path,
        environ: Mapping[str, str] = os.environ,
        binary: str | None = None,
        limit_seconds: float = 1800,
    ) -> None:
        """`cache`: uv's download cache, unless UV_CACHE_DIR names another. `limit_seconds`: limit of an
        unconfined run."""
        self._limit_seconds = limit_seconds
        self._binary = binary
        # Setup scripts of users run with these, so the service's own variables (secrets) are left out.
        kept = {
            name: value
            for name, value in environ.items()
            if name in _PASSED_ON
            or name.startswith(_PASSED_ON_PREFIXES)
            or name.lower() in _PROXIES
        }
        self._environ = {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
        self._environ.setdefault("UV_CACHE_DIR", str(cache))
        self._owns_cache = self.cache == cache
        self._environ.update(index_environment(environ))
        # uv must use the interpreter it is given, and neither fetch one nor follow the caller's environment.
        self._environ.update(UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1")
        self._environ.pop("UV_PYTHON", None)
        # uv has no variable for it.
        self._flags = ("--no-index",) if self._environ.pop("UV_NO_INDEX", "") else ()
        #: Whether uv's or pip's settings on this machine say where packages come from.
        self.has_indexes = names_indexes(environ)
        #: Asked for at the end of the service.
        self.closing = Stop()

    def close(self) -> None:
        """Stop running installations, for the end of the service; their builds fail and leave nothing."""
        self.closing.ask()

    @property
    def needs(self) -> tuple[str, ...]:
        """Files that an installation reads: uv itself, and its settings of where packages come from. Raises
        BuildFailed if there is no uv."""
        variables = ("UV_CONFIG_FILE", "UV_FIND_LINKS", "SSL_CERT_FILE", "SSL_CERT_DIR")
        values = ",".join(self._environ.get(name, "") for name in (*variables, "UV_INDEX"))
        places = [place.removeprefix("file://") for place in re.split(r"[,\s]+", values)]
        files = [place for place in places if place.startswith("/") and Path(place).exists()]
        return (self._find(), *files)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Files with this user's uv settings and with passwords of indexes: for uv, and not for scripts of
        users."""
        home = Path(self._environ.get("HOME") or "/nonexistent")
        settings = Path(self._environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv"
        netrc = self._environ.get("NETRC") or str(home / ".netrc")
        return tuple(path for path in (str(settings), netrc) if Path(path).exists())

    @property
    def cache(self) -> Path:
        return Path(self._environ["UV_CACHE_DIR"])

    def clear_cache(self) -> None:
        """Empty uv's cache. Blocks while uv runs elsewhere on it. Raises InstallFailed, BuildFailed."""
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
        """Install requirements, files or flags `what` into the directory `target` for the interpreter
        `python`.

        Blocks; `stop` ends it early. `apart`: what it may see and change, None = it is not confined.
        `linked`: the files may be hard links into uv's cache, which saves disk space; only for a directory
        that nobody but us will write to. Raises InstallFailed, or BuildFailed if uv itself is missing or the
        build was stopped.
        """
        command = [self._find(), "pip", "install", "--python", str(python), "--target", str(target)]
        # A cache that an operator named serves others as well, and links would make its files read-only.
        mode = "hardlink" if linked and self._owns_cache else "copy"
        command += [*self._flags, "--link-mode", mode, *what]
        if self._owns_cache:
            # It is closed to other users, because anybody who reaches uv's lock files can write to them.
            self.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A cache that another user has made is theirs.
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
        by the distribution's name. Their own requirements are not considered.

        Blocks. `place`: an empty directory for the question and the answer. Raises InstallFailed,
        BuildFailed.
        """
        (place / "asked.in").write_text("".join(f"{requirement}\n" for requirement in requirements))
        # The service's own interpreter, because any other runs what packages have left for its start.
        command = [self._find(), "pip", "compile", "--python", sys.executable, "--no-deps"]
        command += ["--python-version", python]
        command += [*self._flags, "--only-binary", ":all:", "--no-header", "--no-annotate"]
        command += ["asked.in"]
        with _settings(place):
            self._execute([*command, "-o", "answer.txt"], place, unheard, quiet=True, stop=stop)
        pins = (_PIN.match(line) for line in (place / "answer.txt").read_text().splitlines())
        return {pin["name"]: pin["version"] for pin in pins if pin}

    def wheel(self, python: Path, source: Path, *, apart: Confinement, stop: Stop | None) -> None:
        """Build a source distribution into `apart.wheels`, as `install` would. Blocks. Raises InstallFailed,
        BuildFailed."""
        command = [self._find(), "build", "--wheel", "--python", str(python)]
        command += [*self._flags, "--out-dir", str(apart.wheels), str(source)]
        self._execute(command, apart.wheels, unheard, stop=stop, apart=apart)

    def run(
        self,
        command: Sequence[str],
        cwd: Path,
        progress: Callable[[str], None] | None = None,
        doing: str = "working",
    ) -> None:
        """Run a program in the installer's clean environment. Blocks. `progress` is told now and then that it
        is still `doing` it, but not its output. Raises InstallFailed with its last lines, BuildFailed if the
        service stops."""
        self._execute(command, cwd, progress or unheard, doing, quiet=True)

    def compile(
        self,
        python: Path,
        directory: Path,
        progress: Callable[[str], None] = unheard,
        apart: Confinement | None = None,
        *,
        in_background: bool = False,
    ) -> None:
        """Compile the modules below `directory`, except test suites (half of the work, never imported).
        Blocks. Modules that cannot be compiled are ignored. `in_background`: leave the processors to all
        other processes. Raises BuildFailed if the service stops, InstallFailed if a confined run was
        ended."""
        progress("Compiling the packages to bytecode.")
        program = f"import os; os.nice(19); {_COMPILE}" if in_background else _COMPILE
        command = [str(python), "-I", "-c", program, "-qq", "-j", "0", "-x", _NOT_COMPILED]
        command.append(str(directory))
        try:
            self._execute(command, directory, progress, "compiling", quiet=True, apart=apart)
        except InstallFailed as failure:
            # Packages ship files that are no modules (templates, old syntax), whose import would fail anyway.
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
        with begun(command, self._environ, cwd, apart) as execution:
            process = execution.process
            stops = (stop, self.closing)
            for ending in stops:
                ending.began(process, execution.end)
            seconds = execution.seconds or self._limit_seconds
            limit = threading.Timer(seconds, kill, [process])
            limit.daemon = True
            limit.start()
            narration = Narration(tell, doing, quiet=quiet)
            try:
                for line in output.lines(execution.output, BEAT, execution.line):
                    if line is None:
                        narration.silence()
                    elif not line.startswith(NOISE):
                        last.append(line)
                        narration.hear(line)
                narration.end()
            finally:
                process.wait()
                limit.cancel()
                for ending in stops:
                    ending.ended(process)
            verdict = execution.verdict()
        self.closing.check()
        if stop.is_asked:
            raise BuildFailed("The build was stopped, because no job waits for it any more.")
        if verdict:
            raise InstallFailed((*last, verdict), is_final=True)
        if process.returncode == 128 + signal.SIGKILL:
            last.append(f"{KILLED}, perhaps by the kernel for want of memory.")
        if process.returncode == -signal.SIGKILL:
            last.append(f"Stopped from outside, or after the limit of {seconds:g} seconds.")
        if process.returncode:
            raise InstallFailed(tuple(last))

    def _find(self) -> str:
        if not self._binary:
            binary = _packaged() or shutil.which("uv")
            if not binary:
                raise BuildFailed(
                    "The uv program was not found, and runtimes are built with it. It comes with the "
                    "service: pip install 'trainshed[service]', or put uv on PATH."
                )
            self._binary = binary
        return self._binary


@contextmanager
def _settings(place: Path) -> Generator[None]:
    """Write the settings of uv into the directory in which it is started, for the time of the context. uv
    reads them in addition to the machine's, unless UV_CONFIG_FILE names others; an empty pyproject.toml keeps
    it from those of a project around the directory."""
    settings = {"uv.toml": _CORRECTIONS, "pyproject.toml": ""}
    try:
        for name, text in settings.items():
            (place / name).write_text(text)
        yield
    finally:
        for name in settings:
            (place / name).unlink(missing_ok=True)


def _packaged() -> str | None:
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        return None
