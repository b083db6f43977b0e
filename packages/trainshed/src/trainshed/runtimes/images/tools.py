"""Provides podman and docker as image tools, and finds the one that works on this machine. While none works,
it repeats the search."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping

from trainshed.runtimes.images.commands import Commands, ImageTool, ToolFailed


def _docker(commands: Commands) -> ImageTool:
    """Return docker, if its daemon responds at DOCKER_HOST or the default address. Blocks; raises
    ToolFailed."""
    commands.query("version", "--format", "{{.Server.Version}}")
    return ImageTool("docker", commands)


def _podman(commands: Commands) -> ImageTool:
    """Return podman, if it works here, as root or rootless. Blocks; raises ToolFailed."""
    facts = json.loads(commands.query("info", "--format", "json"))
    driver = facts["store"]["graphDriverName"]
    if sum(mapping["size"] for mapping in facts["host"]["idMappings"].get("uidmap") or ()) == 1:
        # This podman has only one user ID for files, so it would reject images with files of other users. The
        # owners of files do not matter here: an ordinary user owns everything that this user unpacks.
        commands = commands.with_options(f"--storage-opt={driver}.ignore_chown_errors=true")
    return ImageTool("podman", commands)


AUTO, NONE = "auto", "none"
_PROBES: dict[str, Callable[[Commands], ImageTool]] = {"podman": _podman, "docker": _docker}
_SEARCH_INTERVAL = 15 * 10**9
"""Interval in ns before the next search for a missing tool."""


class Tools:
    """Finds the image tool of this machine. Safe for several threads."""

    def __init__(self, wanted: str, environ: Mapping[str, str], now: Callable[[], int]) -> None:
        #: The requested tool: `AUTO`, `NONE`, or a name in `_PROBES`.
        self._wanted = wanted
        self._environ = environ
        #: Clock that returns nanoseconds, used only for durations.
        self._now = now
        self._searching = threading.Lock()
        self._found: ImageTool | None = None
        self._asked: Commands | None = None
        self._closed = False
        self._missing = ""
        self._searched = 0
        if wanted == NONE:
            self._missing = "This service does not run container images, because container_tool is none."

    def tool(self) -> ImageTool | None:
        """Return the tool that is known to work, or None. Never blocks."""
        return self._found

    def missing(self) -> str:
        """Return the reason why no tool works, and the remedy, as sentences. Returns "" if a tool works, or
        before the first search. Never blocks."""
        return self._missing

    def is_stale(self) -> bool:
        """Whether `search` should run again, because no tool was found and the last search is too old. Never
        blocks."""
        if self._found is not None or self._wanted == NONE:
            return False
        return not self._searched or self._now() - self._searched > _SEARCH_INTERVAL

    def search(self) -> ImageTool | None:
        """Search for a tool, unless there was a search recently. Blocks, up to a minute for each hanging
        tool."""
        with self._searching:
            if self.is_stale():
                self._found, self._missing = self._find_tool()
                self._searched = self._now()
            return self._found

    def close(self) -> None:
        """Kill running commands of the tool and running probes, and start no further ones."""
        self._closed = True
        for tool in (self._asked, self._found):
            if tool is not None:
                tool.close()

    def _find_tool(self) -> tuple[ImageTool | None, str]:
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
                unusable.append(f"{name} fails: {failure}.")
        if self._wanted == AUTO:
            cause = " ".join(unusable) or "neither is on the service's PATH."
            needed = "podman or docker, but none of them works"
        else:
            cause = " ".join(unusable) or "it is not on the service's PATH."
            needed = f"{self._wanted} (setting container_tool), which does not work"
        what = "Fix that, or install podman" if unusable else "Install podman"
        return None, (
            f"Container images require {needed}: {cause} {what}, which needs neither root nor a daemon."
        )


def _probe(name: str, commands: Commands) -> ImageTool:
    try:
        if name == "docker" and "podman" in commands.query("--version").lower():
            # On some systems, the command `docker` is podman. Then treat this tool as podman.
            name = "podman"
        return _PROBES[name](commands)
    except (ValueError, KeyError, TypeError) as failure:
        raise ToolFailed(f"{name} printed an invalid answer: {failure}") from failure
