"""docker as a tool for images: its command line and a daemon that answers, wherever DOCKER_HOST says that it is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainshed.runtimes.images import asking
from trainshed.runtimes.images.commands import Commands
from trainshed.runtimes.images.tool import ImageConfig


class Docker:
    """See the port. `store`: the file that lists the images' names, where this user may look at it."""

    name = "docker"

    def __init__(self, commands: Commands, store: Path) -> None:
        self._commands = commands
        self._store = store

    @classmethod
    def probe(cls, commands: Commands) -> "Docker":
        """It, if its daemon answers. Blocks; raises ToolFailed."""
        commands.ask("version", "--format", "{{.Server.Version}}")
        facts: dict[str, Any] = json.loads(commands.ask("info", "--format", "{{json .}}"))
        root, driver = facts.get("DockerRootDir") or "", facts.get("Driver") or ""
        return cls(commands, Path(root, "image", driver, "repositories.json"))

    def fingerprint(self) -> str:
        try:
            stat = self._store.stat()
        except OSError:
            # A daemon elsewhere, its store closed to this user, or one of another kind.
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
