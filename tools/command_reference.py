"""Generates the reference of the `trainshed` command (docs/commands.md of the site) from the command
definitions."""

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from trainshed.__main__ import group
from trainshed.cli.commands import LazyCommand

_NAME: Final = "trainshed"
_CONNECTION: Final = ("--url", "--token", "--ca", "--data")
"""Options of all commands that call a service. The page lists them once."""
_WHERE_TAKEN_FROM: Final = ("jobs", "list")
_COMMAND: Final = re.compile(r"(?<=: )(?:eval |trainshed )[^;]+?(?=\.?(?:;|$)|[.,] )")
"""Matches a command after a colon in a help text."""


def page(introduction: str) -> str:
    """Return the whole page. `introduction`: the handwritten part."""
    connection = _options(_context_of(_WHERE_TAKEN_FROM), of_connection=True)
    parts = [introduction, "\n## Options of the connection\n\n", *connection]
    for words, command in commands():
        if words:
            parts += _section(words, command)
    return "".join(parts)


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Return all commands by their words, groups before their subcommands. () is `trainshed` itself."""
    yield from _below((), group)


def _below(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    loaded = command.load() if isinstance(command, LazyCommand) else command
    yield words, loaded
    if isinstance(loaded, click.Group):
        for name in sorted(loaded.commands):
            yield from _below((*words, name), loaded.commands[name])


def _context_of(words: tuple[str, ...]) -> click.Context:
    return _context(words, dict(commands())[words])


def _context(words: tuple[str, ...], command: click.Command) -> click.Context:
    """Return a Click context for a command, with the help option names of `trainshed`."""
    return click.Context(command, info_name=" ".join((_NAME, *words)), help_option_names=["-h", "--help"])


def _section(words: tuple[str, ...], command: click.Command) -> Iterator[str]:
    context = _context(words, command)
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    usage = " ".join((_NAME, *words, "[OPTIONS]", *pieces)).rstrip()
    yield f"\n{'#' * (len(words) + 1)} {_NAME} {' '.join(words)}\n"
    for paragraph in _paragraphs(command.help or ""):
        yield f"\n{paragraph}\n"
    yield f"\n```text\n{usage}\n```\n"
    if isinstance(command, click.Group):
        yield f"\nCommands: {_commands_of(words, command)}.\n"
    yield from _options(context, of_connection=False)
    if command.epilog:
        yield f"\n{_paragraphs(command.epilog)[0]}\n"


def _commands_of(words: tuple[str, ...], command: click.Group) -> str:
    return ", ".join(f"[{name}](#{'-'.join((_NAME, *words, name))})" for name in sorted(command.commands))


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help text as Markdown, with one line per paragraph."""
    plain = inspect.cleandoc(text).replace("\b\n", "")
    return [_markdown(re.sub(r"\s+", " ", part)) for part in plain.split("\n\n")]


def _markdown(text: str) -> str:
    """Convert a text for terminals to Markdown: put special characters into code spans."""
    return _COMMAND.sub(lambda match: f"`{match[0]}`", text).replace("|", "\\|").replace("<", "&lt;")


def _options(context: click.Context, of_connection: bool) -> Iterator[str]:
    """Return the table of a command's options: either the connection options or all others."""
    rows: list[str] = []
    connects = False
    for parameter in context.command.get_params(context):
        if not isinstance(parameter, click.Option) or parameter.hidden or parameter.is_eager:
            continue
        if _is_of_connection(parameter, context) != of_connection:
            connects = not of_connection
            continue
        rows.append(_row(parameter, context))
    if rows:
        yield "\n| option | meaning |\n| --- | --- |\n"
        yield from rows
    if connects:
        yield "\nAlso: [options of the connection](#options-of-the-connection).\n"


def _is_of_connection(option: click.Option, context: click.Context) -> bool:
    """Return whether the option selects the service. `--data` has another meaning in commands that do not
    call a service."""
    asks = any("--url" in other.opts for other in context.command.params)
    return asks and any(name in _CONNECTION for name in option.opts)


def _row(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None, option.name
    names = ", ".join(f"`{name}`" for name in option.opts)
    if option.secondary_opts:
        names += ", " + ", ".join(f"`{name}`" for name in option.secondary_opts)
    meaning = re.sub(r"\s+", " ", record[1])
    value = option.make_metavar(context)
    if isinstance(option.type, click.Choice):
        # List the choices in the description, not after the name.
        values = value.strip("[]").split("|")
        meaning += " One of " + ", ".join(f"`{word}`" for word in values) + "."
    elif not option.is_flag:
        names += " " + _markdown(value.removesuffix(" RANGE"))
    return f"| {names} | {_markdown(meaning.strip())} |\n"
