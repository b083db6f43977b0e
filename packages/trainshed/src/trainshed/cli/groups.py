"""Groups of commands that accept shared options before the command's name, and help with missing names.

`trainshed --data D jobs list` means `trainshed jobs list --data D`; `trainshed models list` means `trainshed
list models`, as does `trainshed models`. If a user leaves out the group of a command, the error names the
group.
"""

from collections.abc import Container, Sequence

import click
from click.exceptions import NoSuchCommand

from trainshed.cli.commands import KINDS, LazyCommand

_SHARED = frozenset({"--data", "--url", "--token", "--ca", "--format", "--project", "--region"})
"""Options that most commands have; each takes a value."""
_HELP = frozenset({"-h", "--help", "--version"})
VERBS = ("list", "describe", "delete")
"""Commands that take a kind of thing."""


class Group(click.Group):
    """A group whose shared options may stand before the command's name."""

    #: The command that is run if none is named; "" = none.
    default = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move shared options behind the command's name, where click expects them."""
        # While a shell completes words, the command may not have been typed yet.
        is_typed = not ctx.resilient_parsing
        if ctx.parent is None:
            args = in_order(args, {*self.commands, *KINDS})
            args = verb_first(args, self.commands, default="list" if is_typed else "")
        return super().parse_args(
            ctx, in_order(args, self.commands, self.default if is_typed else "")
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does. Raises click.UsageError if there is none of this name, with the
        command or the group that may be meant."""
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
        """Return the names of the groups in this one that have a command of that name. Imports them."""
        groups: list[str] = []
        for group, command in self.commands.items():
            loaded = command.load() if isinstance(command, LazyCommand) else command
            if isinstance(loaded, click.Group) and name in loaded.commands:
                groups.append(group)
        return groups


class ListGroup(Group):
    """A group that runs its command `list` if no command is named."""

    default = "list"


def verb_first(
    args: Sequence[str], commands: Container[str] = (), default: str = "list"
) -> list[str]:
    """Return the words of `KIND VERB …` as `VERB KIND …`, others unchanged. `commands`: those of the group; a
    kind among them has commands of its own. `default`: the verb if none is named; "" = none. Raises
    click.UsageError for a kind with another word."""
    if not args or args[0] not in KINDS:
        return [*args]
    kind, *rest = args
    rest = in_order(rest, VERBS, default)
    if rest and rest[0] in VERBS:
        return [rest[0], kind, *rest[1:]]
    if kind in commands or not rest:
        return [*args]
    if rest[0] in _HELP:
        return ["list", rest[0]]
    raise click.UsageError(f"There is no `{kind} {rest[0]}`: {kind} have {', '.join(VERBS)}.")


def in_order(args: Sequence[str], commands: Container[str], default: str = "") -> list[str]:
    """Return the words with the command before shared options; unchanged if no command can be found.
    `default`: the command if none is named; "" = none."""
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
