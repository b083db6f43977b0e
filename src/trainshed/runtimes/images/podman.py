"""podman, as root or rootless, as a tool for images. No daemon: it reads and writes its store itself."""

import json
import os
from pathlib import Path

from trainshed.runtimes.images.commands import Commands, CommandTool
from trainshed.runtimes.images.tool import ToolFailed


class Podman(CommandTool):
    """See the port. `store`: the file that lists the images, replaced whenever they change."""

    name = "podman"

    @classmethod
    def probe(cls, commands: Commands) -> "Podman":
        """It, if it works here. Blocks; raises ToolFailed."""
        facts = json.loads(commands.ask("info", "--format", "json"))
        store, driver = facts["store"], facts["store"]["graphDriverName"]
        if not store.get("graphRoot"):
            raise ToolFailed("it does not say where its images lie")
        if sum(each["size"] for each in facts["host"]["idMappings"].get("uidmap") or ()) == 1:
            # It has one user only to give files to, and could not take images in which others have some. Nor
            # do we care: what an ordinary user unpacks is all his own.
            commands = commands.with_options(f"--storage-opt={driver}.ignore_chown_errors=true")
        # Rootless without a directory of its own it keeps its state below $TMPDIR, which must then stay the
        # same.
        settled = not os.geteuid() or bool(commands.environ.get("XDG_RUNTIME_DIR"))
        images = Path(store["graphRoot"], f"{driver}-images", "images.json")
        return cls(commands, images, takes_scratch=settled)

    def fingerprint(self) -> str:
        """See the port."""
        try:
            return self.stamp()
        except FileNotFoundError:
            return "no images"
        except OSError:
            return ""
