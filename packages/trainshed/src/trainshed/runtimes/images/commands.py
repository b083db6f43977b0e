"""Runs the commands of an image tool (podman or docker) with time limits and short error messages, and kills
them when the service exits. Also parses the tools' descriptions of images."""

import collections
import contextlib
import json
import os
import re
import subprocess
import threading
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from msgspec import Struct

from trainshed.core.runtime import Image
from trainshed.core.units import Bytes
from trainshed.runtimes.output import BEAT, Narration, lines
from trainshed.runtimes.port import Progress
from trainshed.runtimes.stop import OVERSEEN, Stop, kill


class ToolFailed(Exception):
    """Raised if an image tool failed. The message is the essential part of its output. `final`: a retry
    cannot succeed, because the image does not exist or access is denied."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class ImageConfig(Struct, frozen=True):
    """The configuration of an image."""

    #: Identifier of 64 hexadecimal digits, which changes with the image's content.
    id: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None
    user: str | None = None
    #: Architecture in image terms, such as `amd64`; None = unknown.
    architecture: str | None = None
    system: str | None = None
    #: Size of the unpacked image in bytes.
    size: Bytes = 0

    def image(self, root: str) -> Image:
        """Return the image in the form of launch plans. `root`: the image's unpacked root file system."""
        return Image(
            root=root,
            digest=self.id,
            entrypoint=self.entrypoint,
            command=self.command,
            environ=self.environ,
            # Convert "" to None: caches of version 0.2.0 contain "" for images without a working directory or
            # user.
            workdir=self.workdir or None,
            user=self.user or None,
        )


_LAST_LINES = 12
_LOGGED = re.compile(r'^time="[^"]*" level=(?P<level>\w+) msg="?(?P<message>.*?)"?$')
_ERRORS = ("error", "fatal")
FAILURES: Final = tomllib.loads(Path(__file__).with_name("failures.toml").read_text())
"""Explanations for users of error messages of the tools."""
_OWN = ": permission denied"
"""Message of the operating system when it rejects the tool. Registries use other messages."""


class Commands:
    """Runs the commands of one program with time limits."""

    def __init__(
        self,
        binary: str,
        environ: Mapping[str, str],
        *options: str,
        quick: float = 60,
        long: float = 4 * 3600,
    ) -> None:
        self.binary = binary
        #: Options that precede the arguments of each command.
        self._options = options
        #: The environment of each command. It contains the operator's variables: location of the images,
        #: proxies and credentials.
        self.environ = dict(environ) | {"LC_ALL": "C.UTF-8"}
        #: Timeout in seconds of a query.
        self._quick = quick
        #: Timeout in seconds of a command that moves data.
        self._long = long
        self._closing = Stop()

    def with_options(self, *options: str) -> "Commands":
        return Commands(self.binary, self.environ, *options, quick=self._quick, long=self._long)

    def close(self) -> None:
        """Kill running commands, and start no further ones."""
        self._closing.request()

    def query(self, *arguments: str) -> str:
        """Run a command and return its standard output. Raises ToolFailed."""
        with self._start(arguments, self._quick) as (process, late):
            output, errors = process.communicate()
            self._check(process, late, errors.decode(errors="replace"), self._quick)
        return output.decode(errors="replace")

    def follow(
        self, *arguments: str, tell: Progress, doing: str, stop: Stop, into: IO[bytes] | None = None
    ) -> None:
        """Run a command until it exits, and report each line of its output to `tell`. If the output pauses,
        report that the activity `doing` continues. Raises ToolFailed. `stop` ends the command. `into`:
        destination of the command's standard output, which is then not reported."""
        last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        narration = Narration(tell, doing)
        output = (subprocess.PIPE, subprocess.STDOUT) if into is None else (into, subprocess.PIPE)
        with self._start(arguments, self._long, output) as (process, late):
            words = process.stdout or process.stderr
            assert words is not None
            stop.register(process, lambda: kill(process))
            try:
                for line in lines(words.fileno(), BEAT):
                    if line is None:
                        narration.add_silence()
                    else:
                        last.append(line)
                        narration.add_line(line)
                process.wait()
            finally:
                stop.unregister(process)
            if process.returncode and stop.is_asked:
                raise ToolFailed(f"{self.binary} was stopped, because no job needs the image any more")
            self._check(process, late, "\n".join(last), self._long)

    @contextmanager
    def _start(
        self,
        arguments: tuple[str, ...],
        seconds: float,
        output: tuple[IO[bytes] | int, int] = (subprocess.PIPE, subprocess.PIPE),
    ) -> Generator[tuple[subprocess.Popen[bytes], threading.Event]]:
        """Start a command. Yield the process and an event that is set after the timeout. When the context
        exits, the command has exited."""
        # The command's input is a pipe, and only this process has its write end. Therefore the command's
        # input ends if this process dies, and the shell `OVERSEEN` then kills the command.
        watched, ours = os.pipe()
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", OVERSEEN, "image", self.binary, *self._options, *arguments],
                stdin=watched,
                stdout=output[0],
                stderr=output[1],
                env=self.environ,
                cwd="/",
                # Use a separate process group, so that `kill` also reaches the processes that these tools
                # start in other namespaces.
                start_new_session=True,
            )
        except OSError as failure:
            os.close(ours)
            raise ToolFailed(f"{self.binary} cannot be started: {failure.strerror}") from None
        finally:
            os.close(watched)
        late = threading.Event()

        def end() -> None:
            late.set()
            kill(process)

        limit = threading.Timer(seconds, end)
        limit.daemon = True
        limit.start()
        with process:
            self._closing.register(process, lambda: kill(process))
            try:
                yield process, late
            finally:
                limit.cancel()
                # Kill the tool: without a reader of its further output, it would wait forever.
                kill(process)
                process.wait()
                os.close(ours)
                self._closing.unregister(process)

    def _check(
        self, process: subprocess.Popen[bytes], late: threading.Event, errors: str, seconds: float
    ) -> None:
        if not process.returncode:
            return
        if self._closing.is_asked:
            raise ToolFailed("the service is stopping")
        if late.is_set():
            raise ToolFailed(f"{self.binary} did not finish within {seconds:.0f} seconds")
        words = extract_error(errors) or f"it ended with status {process.returncode}"
        answer = words.lower().replace(_OWN, "")
        raise ToolFailed(words, final=any(sign in answer for sign in FAILURES["final"]))


def parse_log_line(line: str) -> tuple[str | None, str]:
    """Return the level and message of a line of a tool's log. For other lines, return None and the line."""
    if match := _LOGGED.match(line):
        return match["level"], match["message"].strip().replace('\\"', '"')
    return None, line


def extract_error(errors: str) -> str:
    """Return the cause of a failure from a tool's standard error: the last plain error message."""
    complaints: list[str] = []
    for line in errors.splitlines():
        level, message = parse_log_line(line.strip())
        if level is None or level in _ERRORS:
            complaints.append(message)
    telling = [line for line in complaints if line]
    labelled = [line for line in telling if line.lower().startswith(("error", "cannot"))]
    words = (labelled or telling or [""])[-1]
    for prefix in ("Error: ", "Error response from daemon: ", "error: "):
        words = words.removeprefix(prefix)
    return words.rstrip(".?!")


_UNKNOWN = ("no such image", "image not known", "no such object")


class ImageTool:
    """Inspects, pulls and exports images with the command line of podman or docker. It never runs images. All
    methods except `close` block and raise ToolFailed. All methods are thread-safe."""

    def __init__(self, name: str, commands: Commands) -> None:
        """`name`: the tool's usual name, `podman` or `docker`."""
        self.name = name
        self._commands = commands

    def inspect(self, reference: str) -> ImageConfig | None:
        """Return this machine's image with that name or ID, or None if it does not exist."""
        try:
            answer = self._commands.query("image", "inspect", "--", reference)
        except ToolFailed as failure:
            if any(sign in str(failure).lower() for sign in _UNKNOWN):
                return None
            raise
        images = json.loads(answer)
        return _config(images[0]) if images else None

    def pull(self, reference: str, tell: Progress, stop: Stop) -> None:
        """Pull an image from its registry. `tell`: called with each line of the tool's output, and regularly
        during silence. `stop` ends the pull."""
        self._commands.follow("pull", "--", reference, tell=tell, doing="pulling", stop=stop)

    def export(self, image_id: str, name: str, into: IO[bytes], tell: Progress, stop: Stop) -> None:
        """Export the image's root file system, all layers in one, as a tar stream.

        Both tools export only containers, so this method creates one and never starts it. `name`: name of
        the container. A container of this name that a killed export left is removed. `tell`, `stop`: as for
        `pull`.
        """
        self._remove(name)
        # The command `true` never runs, but an image without a default command cannot be exported without it.
        create = ("create", "--pull=never", "--network=none", f"--name={name}", image_id, "true")
        self._commands.query(*create)
        try:
            self._commands.follow("export", name, tell=tell, doing="unpacking", stop=stop, into=into)
        finally:
            self._remove(name)

    def close(self) -> None:
        """Kill running commands, and start no further ones. Does not wait."""
        self._commands.close()

    def _remove(self, name: str) -> None:
        # Usually the container does not exist. If it cannot be removed now, the next export removes it by
        # name.
        with contextlib.suppress(ToolFailed):
            self._commands.query("rm", "--force", name)


def _config(answer: dict[str, Any]) -> ImageConfig:
    config: dict[str, Any] = answer.get("Config") or {}
    variables = (entry.partition("=") for entry in config.get("Env") or ())
    return ImageConfig(
        id=str(answer["Id"]).removeprefix("sha256:"),
        entrypoint=_words(config.get("Entrypoint")),
        command=_words(config.get("Cmd")),
        environ=tuple((name, value) for name, _, value in variables if name),
        workdir=config.get("WorkingDir") or None,
        user=config.get("User") or None,
        architecture=answer.get("Architecture") or None,
        system=answer.get("Os") or None,
        size=int(answer.get("Size") or 0),
    )


def _words(value: list[str] | str | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())
