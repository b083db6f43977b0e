"""What podman and docker are asked with the same words: inspect, pull, export."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainshed.runtimes.images.commands import Commands
from trainshed.runtimes.images.tool import ImageConfig, ToolFailed
from trainshed.runtimes.stopping import Stop

_UNKNOWN = ("no such image", "image not known", "no such object")


class AskedTool:
    """What both have in common of the port. `store`: the file that lists the images. `takes_scratch`: whether it may be
    told where to keep what is half pulled."""

    def __init__(self, commands: Commands, store: Path, *, takes_scratch: bool = False) -> None:
        self._commands = commands
        self._store = store
        self._takes_scratch = takes_scratch

    def inspect(self, reference: str) -> ImageConfig | None:
        """See the port."""
        try:
            answer = self._commands.ask("image", "inspect", "--", reference)
        except ToolFailed as failure:
            if any(sign in str(failure).lower() for sign in _UNKNOWN):
                return None
            raise
        found = json.loads(answer)
        return _config(found[0]) if found else None

    def pull(self, reference: str, scratch: Path, hear: Callable[[str], None], stop: Stop) -> None:
        """See the port."""
        environ = {"TMPDIR": str(scratch)} if self._takes_scratch else {}
        self._commands.follow("pull", "--", reference, hear=hear, stop=stop, environ=environ)

    def export(self, image_id: str, name: str, take: Callable[[bytes], None]) -> None:
        """See the port. By a container that is never started: the only thing both tools export."""
        self._remove(name)
        # The command is never run; without one, images that have none could not be exported.
        create = ("create", "--pull=never", "--network=none", f"--name={name}", image_id, "true")
        self._commands.ask(*create)
        try:
            self._commands.pour("export", name, take=take)
        finally:
            self._remove(name)

    def close(self) -> None:
        """See the port."""
        self._commands.close()

    def stamp(self) -> str:
        """Changes with the store. Raises OSError: it cannot be looked at."""
        stat = self._store.stat()
        return f"{stat.st_ino}:{stat.st_mtime_ns}:{stat.st_size}"

    def _remove(self, name: str) -> None:
        # There mostly is none; and what cannot be removed now is found by its name the next time.
        with contextlib.suppress(ToolFailed):
            self._commands.ask("rm", "--force", name)


def _config(answer: dict[str, Any]) -> ImageConfig:
    given: dict[str, Any] = answer.get("Config") or {}
    variables = (entry.partition("=") for entry in given.get("Env") or ())
    return ImageConfig(
        id=str(answer["Id"]).removeprefix("sha256:"),
        entrypoint=_words(given.get("Entrypoint")),
        command=_words(given.get("Cmd")),
        environ=tuple((name, value) for name, _, value in variables if name),
        workdir=given.get("WorkingDir") or "",
        user=given.get("User") or "",
        architecture=answer.get("Architecture") or "",
        system=answer.get("Os") or "",
        size=int(answer.get("Size") or 0),
    )


def _words(value: list[str] | str | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())
