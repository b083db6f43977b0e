"""What podman and docker are asked with the same words: inspect, pull, export."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

from trainshed.runtimes.images.commands import Commands
from trainshed.runtimes.images.tool import ImageConfig, ToolFailed

_UNKNOWN = ("no such image", "image not known", "no such object")


def inspect(commands: Commands, reference: str) -> ImageConfig | None:
    """See the port."""
    try:
        answer = commands.ask("image", "inspect", "--", reference)
    except ToolFailed as failure:
        if any(sign in str(failure).lower() for sign in _UNKNOWN):
            return None
        raise
    found = json.loads(answer)
    return _config(found[0]) if found else None


def pull(commands: Commands, reference: str, tell: Callable[[str], None]) -> None:
    """See the port."""
    commands.follow("pull", "--", reference, tell=tell)


def export(commands: Commands, image_id: str, name: str, take: Callable[[bytes], None]) -> None:
    """See the port. By a container that is never started: the only thing both tools export."""
    _remove(commands, name)
    # The command is never run; without one, images that have none could not be exported.
    commands.ask("create", "--pull=never", "--network=none", f"--name={name}", image_id, "true")
    try:
        commands.pour("export", name, take=take)
    finally:
        _remove(commands, name)


def _remove(commands: Commands, name: str) -> None:
    # There mostly is none; and what cannot be removed now is found by its name the next time.
    with contextlib.suppress(ToolFailed):
        commands.ask("rm", "--force", name)


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
