"""Shell completion of options whose values are the same for every service: images, machine types,
accelerators, regions.

The user waits for it at every key press, so these are answered without importing the command that is typed.
"""

import os
from collections.abc import Callable, Iterable, Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from trainshed.core.catalog.accelerators import accelerator_types
from trainshed.core.catalog.images import listed_images, prebuilt_uri, short_names
from trainshed.core.catalog.machines import machine_types
from trainshed.core.catalog.regions import regions
from trainshed.core.names import Api

_OF_OPTIONS: dict[str, Callable[[], Iterable[str]]] = {
    "--accelerator": lambda: _of_both(accelerator_types),
    "--image": lambda: (*short_names(), *map(prebuilt_uri, listed_images())),
    "--machine-type": machine_types,
    "--region": lambda: _of_both(regions),
}


def answer(group: click.Group, name: str, variable: str) -> bool:
    """Print the completions if the shell asks for the value of one of these options; whether it did.
    `variable`: the environment variable by which the shell asks; it has to be set."""
    shell, _, instruction = os.environ[variable].partition("_")
    asked = get_completion_class(shell)
    if asked is None or instruction != "complete":
        return False
    completion = asked(group, {}, name, variable)
    words, typed = completion.get_completion_args()
    # The words after `--` belong to a program.
    if not words or "--" in words or words[-1] not in _OF_OPTIONS:
        return False
    items = _items(words[-1], typed)
    click.echo("\n".join(map(completion.format_completion, items)))
    return True


def values(_: click.Context, parameter: click.Parameter, typed: str) -> Sequence[CompletionItem]:
    """Return the completions to click, which asks if the value is not a word of its own (`--region=us`)."""
    return _items(parameter.opts[-1], typed)


def _items(option: str, typed: str) -> list[CompletionItem]:
    known = _OF_OPTIONS[option]()
    return [CompletionItem(value) for value in known if value.startswith(typed)]


def _of_both(names: Callable[[Api], tuple[str, ...]]) -> list[str]:
    """Return the names of both APIs, each once."""
    return sorted({name for api in Api for name in names(api)})
