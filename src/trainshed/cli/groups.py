"""Groups of commands that forgive where options stand: `trainshed --data D jobs list` is `trainshed jobs list
--data D`, a group alone is its list, and who leaves a group out is told which."""

from collections.abc import Container, Sequence

import click
from click.exceptions import NoSuchCommand

from trainshed.cli.commands import LazyCommand

_SHARED = frozenset({"--data", "--url", "--token", "--ca", "--format", "--project", "--region"})
"""Options that most commands have; each takes a value."""
_OTHERS_SAY = {
    "help": "--help",
    "info": "status",
    "kill": "jobs cancel",
    "launch": "run",
    "ls": "jobs list",
    "ps": "jobs list",
    "serve": "up",
    "server": "up",
    "start": "up",
    "stop": "down",
    "submit": "run",
    "train": "run",
    "version": "--version",
}
"""What other tools call a command of ours."""
_HELP = frozenset({"-h", "--help", "--version"})


class Group(click.Group):
    """A group whose shared options may stand before the command's name."""

    #: The command that is meant where none is named; "" = none.
    default = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the options where the command looks for them."""
        # Somebody who completes a word has not typed the command yet.
        default = "" if ctx.resilient_parsing else self.default
        return super().parse_args(ctx, in_order(args, self.commands, default))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it. Raises click.UsageError: there is no such command here; with the group that has
        it."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            name = error.command_name
            if meant := _OTHERS_SAY.get(name) if ctx.parent is None else None:
                raise click.UsageError(
                    f"{error.message} Did you mean '{ctx.command_path} {meant}'?", ctx
                ) from None
            meant = [] if error.possibilities else self._groups_with(name)
            if not meant:
                raise
            example = f"'{ctx.command_path} {'jobs' if 'jobs' in meant else meant[0]} {name}'"
            advice = f"Did you mean {example}?"
            if len(meant) > 1:
                advice = f"Say of what: {', '.join(sorted(meant))}, as in {example}."
            raise click.UsageError(f"{error.message} {advice}", ctx) from None

    def _groups_with(self, name: str) -> list[str]:
        """The groups in this one that have a command of that name."""
        found: list[str] = []
        for group, command in self.commands.items():
            loaded = command.load() if isinstance(command, LazyCommand) else command
            if isinstance(loaded, click.Group) and name in loaded.commands:
                found.append(group)
        return found


class ListGroup(Group):
    """A group that is its list where no command is named."""

    default = "list"


def in_order(args: Sequence[str], commands: Container[str], default: str) -> list[str]:
    """The words with the command first; as they are where it cannot be told."""
    end = 0
    while end < len(args):
        word = args[end]
        if word in _SHARED:
            end += 2
        elif word.partition("=")[0] in _SHARED:
            end += 1
        else:
            break
    shared, rest = [*args[:end]], [*args[end:]]
    if rest and rest[0] in commands:
        return [rest[0], *shared, *rest[1:]]
    if default and (not rest or (rest[0].startswith("-") and rest[0] not in _HELP)):
        return [default, *args]
    return [*args]
