"""The table of all commands except those that build services; a command's module is imported when it is used.

Owns their names and one-line descriptions, so that `trainshed --help` imports no command's module.
"""

import importlib
import os
from collections.abc import Callable, Iterable
from typing import Any

import click


class Session:
    """The context object of every command."""

    def __init__(self, now: Callable[[], int]) -> None:
        #: The clock: nanoseconds since the epoch.
        self.now = now


_COMMANDS = (
    ("buckets", "trainshed.cli.buckets", "List, copy and delete objects in buckets."),
    ("console", "trainshed.cli.links:console", "Print a link that opens the web console."),
    (
        "delete",
        "trainshed.cli.listing:delete",
        "Delete a dataset, model, secret or study; revoke a token.",
    ),
    (
        "demo",
        "trainshed.cli.demo",
        "Run a small distributed training job from start to end.",
    ),
    ("describe", "trainshed.cli.listing:describe", "Show everything about one of what is listed."),
    ("down", "trainshed.cli.service:down", "Cancel all jobs and stop the service."),
    (
        "drill",
        "trainshed.cli.jobs.drill",
        "Inject a fault into a running job and report its recovery.",
    ),
    (
        "emulate",
        "trainshed.cli.emulate",
        "Serve tests of other programs, with jobs that end as planned.",
    ),
    (
        "env",
        "trainshed.cli.environment",
        "Print variables that point gcloud and SDKs at the service.",
    ),
    ("explain", "trainshed.cli.jobs.explain", "Tell whether a job would start now, and why not."),
    ("iam", "trainshed.cli.team:iam", "Give somebody a role in a project."),
    ("jobs", "trainshed.cli.jobs.command", "List, describe, follow, cancel and enter jobs."),
    (
        "list",
        "trainshed.cli.listing:list_",
        "List datasets, experiments, models, nodes, secrets, tokens and more.",
    ),
    ("login", "trainshed.cli.login", "Sign in to a service on another machine."),
    ("nodes", "trainshed.cli.capacity:nodes", "Drain nodes for maintenance."),
    ("quotas", "trainshed.cli.capacity:quotas", "Set what a project may use."),
    ("run", "trainshed.cli.run.command", "Run a program of this machine as a job."),
    ("secrets", "trainshed.cli.secrets", "Store secrets that jobs name in their environment."),
    ("status", "trainshed.cli.service:status", "Show whether a service runs and what it does."),
    ("tensorboard", "trainshed.cli.links:tensorboard", "Open TensorBoard for what jobs wrote."),
    ("tokens", "trainshed.cli.team:tokens", "Make tokens for people and machines."),
)
"""(name, module, description); the module's `command` is the click command, unless another is named."""

KINDS = (
    *("audit", "curves", "datasets", "experiments", "grants", "machine-types", "models", "nodes"),
    *("projects", "quotas", "secrets", "studies", "tokens", "usage"),
)
"""The kinds of `trainshed.cli.resources`, by which `trainshed KIND list` is known."""


def register(
    group: click.Group, now: Callable[[], int], others: Iterable[tuple[str, str, str]] = ()
) -> None:
    """Add the commands to `group`, and `others`, which are given in the same form. `now`: the clock of all
    commands, nanoseconds since the epoch."""
    add_lazily(group, (*_COMMANDS, *others), Session(now))


def add_lazily(
    group: click.Group, rows: Iterable[tuple[str, str, str]], session: Session | None = None
) -> None:
    """Add commands in the form of `_COMMANDS`. `session`: see `LazyCommand`."""
    for name, module, description in rows:
        where = module if ":" in module else f"{module}:command"
        group.add_command(LazyCommand(name, where, description, session))


class LazyCommand(click.Command):
    """Stands for a command until it is called; the group's help needs only its description.

    `where`: `module:name`. `session`: the command's context object; None = the group's."""

    def __init__(
        self, name: str, where: str, description: str, session: Session | None = None
    ) -> None:
        super().__init__(name, help=description)
        self._where = where
        self._session = session

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        command = self.load()
        if os.environ.get("NO_COLOR"):
            extra.setdefault("color", False)
        if self._session is not None:
            extra["obj"] = self._session
        return command.make_context(info_name, args, parent, **extra)

    def load(self) -> click.Command:
        """Import the command's module and return the command itself."""
        module, _, name = self._where.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command
