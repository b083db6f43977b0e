"""podman and docker as tools for images, and which of them gets images on this machine: looked for once, and
again now and then as long as there is none."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainshed.runtimes.images.commands import Commands, CommandTool
from trainshed.runtimes.images.tool import ImageTool, ToolFailed


class Docker(CommandTool):
    """docker: its command line and a daemon that answers, wherever DOCKER_HOST says that it is. `store`: the
    file that lists the images' names, where this user may look at it."""

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


class Podman(CommandTool):
    """podman, as root or rootless. No daemon: it reads and writes its store itself. `store`: the file that
    lists the images, replaced whenever they change."""

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


AUTO, NONE = "auto", "none"
CHOICES = (AUTO, "podman", "docker", NONE)
"""What an operator may choose."""
_PROBES: dict[str, Callable[[Commands], ImageTool]] = {
    "podman": Podman.probe,
    "docker": Docker.probe,
}
_AGAIN = 15 * 10**9
"""ns after which it is looked again for a tool that was not there."""


class Tools:
    """The tool that gets images on this machine. Safe for several threads."""

    def __init__(self, wanted: str, environ: Mapping[str, str], now: Callable[[], int]) -> None:
        #: One of `CHOICES`.
        self._wanted = wanted
        self._environ = environ
        #: Nanoseconds.
        self._now = now
        self._searching = threading.Lock()
        self._found: ImageTool | None = None
        self._asked: Commands | None = None
        self._closed = False
        self._missing = ""
        self._searched = 0
        if wanted == NONE:
            self._missing = (
                "Container images are not run by this service: it is set so (container_tool)."
            )

    def tool(self) -> ImageTool | None:
        """The tool, if one is known to work. Never blocks."""
        return self._found

    def missing(self) -> str:
        """Why there is no tool and what to do, as whole sentences; "" if there is one, or nobody knows yet.
        Never blocks."""
        return self._missing

    def is_stale(self) -> bool:
        """Whether it is time to `search`. Never blocks."""
        if self._found is not None or self._wanted == NONE:
            return False
        return not self._searched or self._now() - self._searched > _AGAIN

    def search(self) -> ImageTool | None:
        """Look for one, unless that was done just now. Blocks, up to a minute where a tool hangs."""
        with self._searching:
            if self.is_stale():
                self._found, self._missing = self._look()
                self._searched = self._now()
            return self._found

    def close(self) -> None:
        """Kill what the tool does, and what is being asked whether it is one; nothing is asked after that."""
        self._closed = True
        for each in (self._asked, self._found):
            if each is not None:
                each.close()

    def _look(self) -> tuple[ImageTool | None, str]:
        names = list(_PROBES) if self._wanted == AUTO else [self._wanted]
        unusable: list[str] = []
        for name in names:
            binary = shutil.which(name, path=self._environ.get("PATH", os.defpath))
            if binary is None:
                continue
            commands = self._asked = Commands(binary, self._environ)
            if self._closed:
                commands.close()
            try:
                return _probe(name, commands), ""
            except ToolFailed as failure:
                unusable.append(f"{name} is there and says: {failure}.")
        if self._wanted == AUTO:
            told = " ".join(unusable) or "neither was found on the service's PATH."
            needed = "podman or docker, of which there is none that works"
        else:
            told = " ".join(unusable) or "it was not found on the service's PATH."
            needed = f"{self._wanted} (container_tool), which does not work"
        what = "Set that right, or install podman" if unusable else "Install podman"
        return None, (
            f"Images are fetched by {needed}: {told} {what}, which needs neither root nor a daemon."
        )


def _probe(name: str, commands: Commands) -> ImageTool:
    try:
        if name == "docker" and "podman" in commands.ask("--version").lower():
            # podman under docker's name, as some systems have it.
            name = "podman"
        return _PROBES[name](commands)
    except (ValueError, KeyError, TypeError) as failure:
        raise ToolFailed(f"its answer is not understood: {failure}") from failure
