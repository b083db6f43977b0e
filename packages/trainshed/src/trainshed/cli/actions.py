"""The output of commands that change something: sentences for people, or one list for programs.

The list has the same form for all commands: an object for each thing that was acted on, in order.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from trainshed.cli.output_format import output_format, print_data

R = TypeVar("R")


class Actions:
    """What a command has done so far. Sentences are printed at once, the list at the end of the command."""

    def __init__(self, *, as_data: bool) -> None:
        #: True if the list was asked for, by --format json or yaml.
        self.as_data = as_data
        self._done: list[dict[str, Any]] = []

    def did(
        self,
        kind: str,
        name: str,
        outcome: str,
        sentence: str = "",
        *,
        record: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        why: str = "",
    ) -> None:
        """Report one thing that was done. `kind`: what it was done to, such as "job". `name`: its id.
        `outcome`: what became of it, such as "deleted". `sentence`: for people; "" = none. `record`: its
        state now, or a function that returns it, which is called only for the list. `why`: why the outcome is
        not the one that was asked for."""
        if not self.as_data:
            if sentence:
                click.echo(sentence)
            return
        done: dict[str, Any] = {"kind": kind, "id": name, "outcome": outcome}
        if why:
            done["why"] = why
        if record is not None:
            done["record"] = dict(record() if callable(record) else record)
        self._done.append(done)

    def say(self, sentence: str = "") -> None:
        """Print something else. If the list was asked for, it goes to standard error."""
        click.echo(sentence, err=self.as_data)

    def close(self, *, failed: bool) -> None:
        """Print the list if it was asked for. `failed`: do not print an empty one, which would mean that
        there was nothing to do."""
        if self.as_data and (self._done or not failed):
            print_data(self._done)


def takes_actions(command: Callable[..., R]) -> Callable[..., R]:
    """Add --format to a command that changes something, and pass it `actions` for its output. What was done
    before an error is printed too."""

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
