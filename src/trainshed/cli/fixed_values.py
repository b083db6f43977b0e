"""What a shell offers for options whose values are the same at every service: images, machine types,
accelerators, regions.

Whoever presses a key waits for it, so that these are answered without loading the command that is typed.
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
    """Print what a shell asks for by the environment, if it is the value of one of these options and nothing
    else; whether it is. `variable`: that of the environment which names the shell."""
    shell, _, instruction = os.environ[variable].partition("_")
    asked = get_completion_class(shell)
    if asked is None or instruction != "complete":
        return False
    completion = asked(group, {}, name, variable)
    words, typed = completion.get_completion_args()
    # Behind `--` stand the words of a program.
    if not words or "--" in words or words[-1] not in _OF_OPTIONS:
        return False
    items = _items(words[-1], typed)
    click.echo("\n".join(map(completion.format_completion, items)))
    return True


def values(_: click.Context, parameter: click.Parameter, typed: str) -> Sequence[CompletionItem]:
    """The same for click, which asks where a value is not a word of its own (`--region=us`)."""
    return _items(parameter.opts[-1], typed)


def _items(option: str, typed: str) -> list[CompletionItem]:
    known = _OF_OPTIONS[option]()
    return [CompletionItem(value) for value in known if value.startswith(typed)]


def _of_both(names: Callable[[Api], tuple[str, ...]]) -> list[str]:
    """Of both APIs, each once."""
    return sorted({name for api in Api for name in names(api)})
