"""The table of commands, except for the commands that build services.

The table has the names and one-line descriptions, so `trainshed --help` imports no command's module. A module
is imported when its command is used.

Groups accept shared options before the command's name: `trainshed --data D jobs list` is `trainshed jobs list
--data D`. `trainshed models list` and `trainshed models` are `trainshed list models`. If a user omits the
group of a command, the error contains the group.
"""

import importlib
import os
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import click
from click.exceptions import NoSuchCommand

from trainshed.core.units import Nanos

_COMMANDS = (
    ("buckets", "trainshed.cli.buckets", "List, copy and delete objects in buckets."),
    ("console", "trainshed.cli.links:console", "Print a link that opens the web console."),
    ("delete", "trainshed.cli.listing:delete", "Delete a model, dataset, pipeline job, secret and more."),
    ("describe", "trainshed.cli.listing:describe", "Show all details of a model, node or study."),
    ("down", "trainshed.cli.service:down", "Cancel all jobs and stop the service."),
    ("drill", "trainshed.cli.jobs.drill", "Inject a fault into a job and report its recovery."),
    ("emulate", "trainshed.cli.emulate", "Run a service for tests, with jobs that end as planned."),
    ("env", "trainshed.cli.environment", "Print variables that point gcloud and SDKs here."),
    ("iam", "trainshed.cli.access:iam", "Grant a role in a project, or revoke it."),
    ("jobs", "trainshed.cli.jobs.command", "List, describe, follow, cancel and enter jobs."),
    ("list", "trainshed.cli.listing:list_", "List models, datasets, experiments, nodes and more."),
    ("login", "trainshed.cli.login", "Sign in to a service on another machine."),
    ("nodes", "trainshed.cli.capacity:nodes", "Drain nodes for maintenance."),
    ("pipelines", "trainshed.cli.pipelines.command", "Run compiled pipelines, and follow their tasks."),
    ("quotas", "trainshed.cli.capacity:quotas", "Limit the use of a project or a user."),
    ("run", "trainshed.cli.run.command", "Run a program of this machine as a job."),
    ("schedules", "trainshed.cli.schedules", "Pause and resume schedules of pipeline jobs."),
    ("secrets", "trainshed.cli.access:secrets", "Store secrets for the environment of jobs."),
    ("status", "trainshed.cli.service:status", "Show whether a service runs, and its jobs."),
    ("tensorboard", "trainshed.cli.links:tensorboard", "Open TensorBoard for the event files of jobs."),
    ("tokens", "trainshed.cli.access:tokens", "Create tokens for people and service accounts."),
)  # fmt: skip
"""(name, module, description). The click command is the attribute `command` of the module, unless the row has
the form `module:attribute`."""
SECTIONS = {
    "Every day": ("run", "jobs", "pipelines", "schedules", "up", "status", "console", "down"),
    "Inputs and results of jobs": ("list", "describe", "delete", "buckets", "secrets", "tensorboard"),
    "Capacity and recovery": ("quotas", "nodes", "drill"),
    "People and clients": ("env", "login", "iam", "tokens"),
    "The service": ("doctor", "runtimes", "backup", "restore", "emulate"),
}
"""The topics of `trainshed --help`, each with its commands."""

KINDS = (
    *("audit", "curves", "datasets", "experiments", "grants", "machine-types", "models", "nodes"),
    *("pipelines", "projects", "quotas", "schedules", "secrets", "studies"),
    *("tokens", "usage"),
)
"""The kinds of `trainshed.cli.resources`, each with the commands `trainshed KIND list` and so on."""


def register(
    group: click.Group, now: Callable[[], Nanos], others: Iterable[tuple[str, str, str]] = ()
) -> None:
    """Add the commands of this module and `others` to `group`. `others` has the form of `_COMMANDS`. `now`:
    the clock of all commands, which becomes their context object."""
    group.context_settings["obj"] = now
    add_lazily(group, (*_COMMANDS, *others))


def add_lazily(group: click.Group, rows: Iterable[tuple[str, str, str]]) -> None:
    """Add commands in the form of `_COMMANDS`."""
    for name, module, description in rows:
        where = module if ":" in module else f"{module}:command"
        group.add_command(LazyCommand(name, where, description))


class LazyCommand(click.Command):
    """A placeholder that imports its command when the command is called. `where`: `module:name` of the
    command."""

    def __init__(self, name: str, where: str, description: str) -> None:
        super().__init__(name, help=description)
        self._where = where

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if os.environ.get("NO_COLOR"):
            extra.setdefault("color", False)
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> click.Command:
        """Import the command's module and return the command itself."""
        module, _, name = self._where.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


_SHARED_OPTIONS = frozenset({"--data", "--url", "--token", "--ca", "--format", "--project", "--region"})
"""Options that most commands have. Each option has a value."""
_HELP = frozenset({"-h", "--help", "--version"})
VERBS = ("list", "describe", "delete")
"""Commands whose first argument is a kind of resource, such as `models`."""
_OWN_VERBS = frozenset({("pipelines", "describe")})
"""Kinds and verbs whose command is in the group of the kind."""


class Group(click.Group):
    """A command group that accepts shared options before the command's name."""

    #: The command to run if the user omits the command, or None.
    default: str | None = None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move shared options after the command's name, where click expects them."""
        # During shell completion, the user may not have typed the command yet.
        is_typed = not ctx.resilient_parsing
        if ctx.parent is None:
            args = command_first(args, {*self.commands, *KINDS}, None)
            args = verb_first(args, self.commands, default="list" if is_typed else None)
        return super().parse_args(ctx, command_first(args, self.commands, self.default if is_typed else None))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands. The commands of `trainshed` itself are grouped by topic."""
        if ctx.parent is not None:
            super().format_commands(ctx, formatter)
            return
        for title, names in SECTIONS.items():
            there = [(f"{name:11}", self.commands[name]) for name in names if name in self.commands]
            with formatter.section(title):
                formatter.write_dl([(name, command.help or "") for name, command in there])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does. If the command exists only in another group, the error contains
        that group. Raises click.UsageError."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            name = error.command_name
            meant = self._groups_with(name)
            if not meant:
                raise
            where = "jobs" if "jobs" in meant else meant[0]
            advice = f"Did you mean '{ctx.command_path} {where} {name}'?"
            raise click.UsageError(f"{error.message} {advice}", ctx) from None

    def _groups_with(self, name: str) -> list[str]:
        """Return the names of the subgroups that contain a command with this name. Imports the subgroups."""
        groups: list[str] = []
        for group, command in self.commands.items():
            loaded = command.load() if isinstance(command, LazyCommand) else command
            if isinstance(loaded, click.Group) and name in loaded.commands:
                groups.append(group)
        return groups


def verb_first(args: Sequence[str], commands: Container[str], default: str | None = "list") -> list[str]:
    """Convert the words `KIND VERB …` to `VERB KIND …`. Return other words unchanged.

    `commands`: the commands of the group. If a kind is also the name of a command, such as `nodes`, words
    that do not start with one of `VERBS` remain unchanged. `default`: the verb to insert if the words contain
    none, or None. Raises click.UsageError if a kind is followed by an unknown word.
    """
    if not args or args[0] not in KINDS:
        return [*args]
    kind, *rest = args
    rest = command_first(rest, VERBS, default)
    if rest and rest[0] in VERBS and (kind, rest[0]) not in _OWN_VERBS:
        return [rest[0], kind, *rest[1:]]
    if kind in commands or not rest:
        return [*args]
    if rest[0] in _HELP:
        return ["list", rest[0]]
    raise click.UsageError(
        f"The command `{kind} {rest[0]}` does not exist. The commands of {kind} are {', '.join(VERBS)}."
    )


def command_first(args: Sequence[str], commands: Container[str], default: str | None) -> list[str]:
    """Move the command before the shared options, because click expects the command first. If the words
    contain no command, insert `default`. Without a default, return the words unchanged."""
    end = 0
    while end < len(args):
        word = args[end]
        if word in _SHARED_OPTIONS:
            end += 2
        elif word.partition("=")[0] in _SHARED_OPTIONS:
            end += 1
        else:
            break
    shared, rest = [*args[:end]], [*args[end:]]
    if rest and rest[0] in commands:
        return [rest[0], *shared, *rest[1:]]
    if default and (not rest or (rest[0].startswith("-") and rest[0] not in _HELP)):
        return [default, *args]
    return [*args]
