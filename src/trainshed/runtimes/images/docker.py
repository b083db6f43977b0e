"""docker as a tool for images: its command line and a daemon that answers, wherever DOCKER_HOST says that it
is."""

import json
from pathlib import Path
from typing import Any

from trainshed.runtimes.images.commands import Commands, CommandTool


class Docker(CommandTool):
    """See the port. `store`: the file that lists the images' names, where this user may look at it."""

    name = "docker"

    @classmethod
    def probe(cls, commands: Commands) -> "Docker":
        """It, if its daemon answers. Blocks; raises ToolFailed."""
        commands.ask("version", "--format", "{{.Server.Version}}")
        facts: dict[str, Any] = json.loads(commands.ask("info", "--format", "{{json .}}"))
        root, driver = facts.get("DockerRootDir") or "", facts.get("Driver") or ""
        return cls(commands, Path(root, "image", driver, "repositories.json"))

    def fingerprint(self) -> str:
        """See the port."""
        try:
            return self.stamp()
        except OSError:
            # A daemon elsewhere, its store closed to this user, or one of another kind.
            return ""
