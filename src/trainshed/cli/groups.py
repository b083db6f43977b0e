"""Groups of commands that accept shared options before the command's name, and help with missing names.

`trainshed --data D jobs list` means `trainshed jobs list --data D`. A `ListGroup` without a command is its
`list`. If a user leaves out the group of a command, the error names the group.
"""

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
"""Names that other tools use, and the command that they mean here."""
_HELP = frozenset({"-h", "--help", "--version"})


class Group(click.Group):
    """A group whose shared options may stand before the command's name."""

    #: The command that is run if none is named; "" = none.
    default = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move shared options behind the command's name, where click expects them."""
        # While a shell completes words, the command may not have been typed yet.
        default = "" if ctx.resilient_parsing else self.default
        return super().parse_args(ctx, in_order(args, self.commands, default))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does. Raises click.UsageError if there is none of this name, with the
        command or the group that may be meant."""
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
        """Return the names of the groups in this one that have a command of that name. Imports them."""
        found: list[str] = []
        for group, command in self.commands.items():
            loaded = command.load() if isinstance(command, LazyCommand) else command
            if isinstance(loaded, click.Group) and name in loaded.commands:
                found.append(group)
        return found


class ListGroup(Group):
    """A group that runs its command `list` if no command is named."""

    default = "list"


def in_order(args: Sequence[str], commands: Container[str], default: str) -> list[str]:
    """Return the words with the command before shared options; unchanged if no command can be found."""
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
