"""Output of commands: text or tables for people, JSON or YAML for programs."""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from trainshed.cli.text.colours import plain
from trainshed.cli.text.moments import size as amount

_YAML = "trainshed.yaml"


def output_format(first: str, help_text: str, *, more: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Return a decorator that adds --format to a command and passes `form`, which is `first` or "json".

    With --format yaml, `form` is "json" as well, and `print_data` prints YAML. `more`: further formats.
    """

    def chosen(context: click.Context, _: click.Parameter, value: str) -> str:
        context.meta[_YAML] = value == "yaml"
        return value if value in more else "json" if value in ("json", "yaml") else first

    return click.option(
        "--format",
        "form",
        type=click.Choice([first, "json", "yaml", *more]),
        default=first,
        show_default=True,
        callback=chosen,
        help=help_text,
    )


format_option = output_format("table", "Output as a table, or as JSON or YAML for programs.")
"""Decorator of a command with a parameter `form`: "table" or "json"."""


_MIN_SHOWN_SIZE = 8 << 20
"""Minimum size in bytes of a transfer whose progress a terminal shows."""


def show_progress(name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a transfer unchanged. If the transfer is large, show its progress on a terminal.
    `size`: bytes of all chunks together."""
    hidden = size < _MIN_SHOWN_SIZE or not sys.stderr.isatty()
    label = f"{plain(name)[-40:]}, {amount(size)}"
    with click.progressbar(length=size, label=label, file=sys.stderr, hidden=hidden) as bar:
        for chunk in chunks:
            yield chunk
            bar.update(len(chunk))


def print_data(value: Any, *, stream: bool = False) -> None:
    """Print a value as JSON or YAML, depending on --format. `stream`: the value is one of many; print it as
    one line of JSON or one YAML document."""
    if click.get_current_context().meta.get(_YAML):
        click.echo(f"---\n{yaml_text(value)}" if stream else yaml_text(value))
        return
    click.echo(json.dumps(value, indent=None if stream else 2))


def terminal_width() -> int | None:
    """Return the number of characters per line of the terminal, or None if standard output is not a
    terminal."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None


def yaml_text(value: Any) -> str:
    """Return a value as a YAML document, without a final newline."""
    import yaml  # Slow import, not needed for JSON and tables.

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    return text.rstrip("\n")
