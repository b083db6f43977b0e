"""What a command that changes something tells of it: sentences for people, or one list for programs.

The list is the same for all commands: an object for each thing that was acted on, in that order.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from trainshed.cli.output_format import output_format, print_data

R = TypeVar("R")


class Actions:
    """What this command has done so far. Sentences are printed at once, the list when the command is over."""

    def __init__(self, *, as_data: bool) -> None:
        #: Asked for by --format json or yaml.
        self.as_data = as_data
        self._done: list[dict[str, Any]] = []

    def did(
        self,
        kind: str,
        name: str,
        outcome: str,
        told: str = "",
        *,
        record: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        why: str = "",
    ) -> None:
        """One thing is done. `kind`: of what, such as "job". `name`: its id. `outcome`: what became of it,
        such as "deleted". `told`: the sentence. `record`: how it is now, or what gives that, which is called
        only for programs. `why`: it is otherwise than was asked for."""
        if not self.as_data:
            if told:
                click.echo(told)
            return
        done: dict[str, Any] = {"kind": kind, "id": name, "outcome": outcome}
        if why:
            done["why"] = why
        if record is not None:
            done["record"] = dict(record() if callable(record) else record)
        self._done.append(done)

    def say(self, told: str = "") -> None:
        """Something besides: programs find it on standard error."""
        click.echo(told, err=self.as_data)

    def close(self, *, failed: bool) -> None:
        """Print the list. `failed`: an empty one would say that there was nothing to do."""
        if self.as_data and (self._done or not failed):
            print_data(self._done)


def takes_actions(command: Callable[..., R]) -> Callable[..., R]:
    """Adds --format to a command that changes something, and hands it `actions` to tell it with. What was
    done before an error is told all the same."""

    @output_format("text", "Output as text, or a list of what was done as JSON or YAML.")
    @functools.wraps(command)
    def telling(*args: Any, form: str, **options: Any) -> R:
        actions = Actions(as_data=form == "json")
        try:
            result = command(*args, actions=actions, **options)
        except BaseException:
            actions.close(failed=True)
            raise
        actions.close(failed=False)
        return result

    return telling
