"""podman, as root or rootless, as a tool for images. No daemon: it reads and writes its store itself."""

import json
from collections.abc import Callable
from pathlib import Path

from trainshed.runtimes.images import asking
from trainshed.runtimes.images.commands import Commands
from trainshed.runtimes.images.tool import ImageConfig, ToolFailed


class Podman:
    """See the port. `store`: the file that lists the images, replaced whenever they change."""

    name = "podman"

    def __init__(self, commands: Commands, store: Path) -> None:
        self._commands = commands
        self._store = store

    @classmethod
    def probe(cls, commands: Commands) -> "Podman":
        """It, if it works here. Blocks; raises ToolFailed."""
        facts = json.loads(commands.ask("info", "--format", "json"))
        store, driver = facts["store"], facts["store"]["graphDriverName"]
        if not store.get("graphRoot"):
            raise ToolFailed("it does not say where its images lie")
        if sum(each["size"] for each in facts["host"]["idMappings"].get("uidmap") or ()) == 1:
            # It has one user only to give files to, and could not take images in which others have some. Nor do we care:
            # what an ordinary user unpacks is all his own.
            commands = commands.with_options(f"--storage-opt={driver}.ignore_chown_errors=true")
        return cls(commands, Path(store["graphRoot"], f"{driver}-images", "images.json"))

    def fingerprint(self) -> str:
        try:
            stat = self._store.stat()
        except FileNotFoundError:
            return "no images"
        except OSError:
            return ""
        return f"{stat.st_ino}:{stat.st_mtime_ns}:{stat.st_size}"

    def inspect(self, reference: str) -> ImageConfig | None:
        return asking.inspect(self._commands, reference)

    def pull(self, reference: str, tell: Callable[[str], None]) -> None:
        asking.pull(self._commands, reference, tell)

    def export(self, image_id: str, name: str, take: Callable[[bytes], None]) -> None:
        asking.export(self._commands, image_id, name, take)

    def close(self) -> None:
        self._commands.close()
