"""How commands print: text or tables for people, JSON or YAML for programs; what they changed as one list."""

import functools
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

_YAML = "trainshed.yaml"


def output_format(first: str, help_text: str, *, default: str = "") -> Callable[[Any], Any]:
    """Return a decorator that adds --format to a command and passes it `form`: `first` or "json". For YAML
    `form` is "json" as well, and `print_data` prints YAML. `first`: "text" or "table"; the other of the two
    is accepted for it. `default`: the option's default; "" = `first`."""

    def chosen(context: click.Context, _: click.Parameter, value: str) -> str:
        context.meta[_YAML] = value == "yaml"
        return "json" if value in ("json", "yaml") else first

    other = "text" if first == "table" else "table"
    return click.option(
        "--format",
        "form",
        type=_Form([first, "json", "yaml", other]),
        metavar=f"[{first}|json|yaml]",
        default=default or first,
        show_default=True,
        callback=chosen,
        help=help_text,
    )


class _Form(click.Choice[str]):
    """A choice whose last value is another word for the first."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the message, which names each form once."""
        *names, _ = self.choices
        return f"{value!r} is not one of {', '.join(names)}."


takes_form = output_format("table", "Output as a table, or as JSON or YAML for programs.")
"""Decorator of a command that takes `form`: "table" or "json"."""


def print_data(value: Any, *, stream: bool = False) -> None:
    """Print a value as JSON or YAML, as the --format of this command says. `stream`: the value is one of
    many, each a line of JSON or a document of YAML."""
    if click.get_current_context().meta.get(_YAML):
        click.echo(f"---\n{yaml_text(value)}" if stream else yaml_text(value))
        return
    click.echo(json.dumps(value, indent=None if stream else 2))


def terminal_width() -> int | None:
    """Return the characters of a line of the terminal; None if standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def yaml_text(value: Any) -> str:
    """Return a value as a YAML document, without a line end at its end."""
    import yaml  # Only here: JSON and tables do without.

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    return text.rstrip("\n")


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
