"""Makes the reference of the `trainshed` command, from the definitions of its commands:
docs/commands.md as the site has it."""

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from trainshed.__main__ import group
from trainshed.cli.commands import LazyCommand

_NAME: Final = "trainshed"
_CONNECTION: Final = ("--url", "--token", "--ca", "--data")
"""Options of every command that asks a service; told once."""
_WHERE_TAKEN_FROM: Final = ("jobs", "list")
_COMMAND: Final = re.compile(r"(?<=: )(?:eval |trainshed )[^;]+?(?=\.?(?:;|$)|[.,] )")
"""A command behind a colon, as help texts show them."""


def page(introduction: str) -> str:
    """The whole page. `introduction`: what is written by hand."""
    connection = _options(_context_of(_WHERE_TAKEN_FROM), of_connection=True)
    parts = [introduction, "\n## Options of the connection\n\n", *connection]
    for words, command in commands():
        if words:
            parts += _section(words, command)
    return "".join(parts)


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command by the words that call it, groups before what is in them; () is `trainshed` itself."""
    yield from _below((), group)


def _below(
    words: tuple[str, ...], command: click.Command
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    loaded = command.load() if isinstance(command, LazyCommand) else command
    yield words, loaded
    if isinstance(loaded, click.Group):
        for name in sorted(loaded.commands):
            yield from _below((*words, name), loaded.commands[name])


def _context_of(words: tuple[str, ...]) -> click.Context:
    return _context(words, dict(commands())[words])


def _context(words: tuple[str, ...], command: click.Command) -> click.Context:
    """What a command is called in, with the names of its options for help that `trainshed` sets."""
    return click.Context(
        command, info_name=" ".join((_NAME, *words)), help_option_names=["-h", "--help"]
    )


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
    return ", ".join(
        f"[{name}](#{'-'.join((_NAME, *words, name))})" for name in sorted(command.commands)
    )


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a help text, each in one line, as Markdown."""
    plain = inspect.cleandoc(text).replace("\b\n", "")
    return [_markdown(re.sub(r"\s+", " ", part)) for part in plain.split("\n\n")]


def _markdown(text: str) -> str:
    """A text for terminals with what Markdown would take for its own put into code."""
    return (
        _COMMAND.sub(lambda match: f"`{match[0]}`", text).replace("|", "\\|").replace("<", "&lt;")
    )


def _options(context: click.Context, of_connection: bool) -> Iterator[str]:
    """The table of a command's options: those of the connection, or all others."""
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
    """`--data` of a command that asks no service means something else."""
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
        # What it stands for alone: some take further words for the same.
        values = value.strip("[]").split("|")
        meaning += " One of " + ", ".join(f"`{word}`" for word in values) + "."
    elif not option.is_flag:
        names += " " + _markdown(value.removesuffix(" RANGE"))
    return f"| {names} | {_markdown(meaning.strip())} |\n"
