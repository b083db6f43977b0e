"""For commands that speak with no service: options that name one are refused. Loads nothing that speaks."""

from collections.abc import Callable
from typing import TypeVar

import click

R = TypeVar("R")


def refuses_service(instead: str, *options: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Has a command that speaks with no service say so where --url, --token, --ca or --data is given.
    `instead`: what to do then, a sentence. `options`: those that are refused, if not all."""

    def refused(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(
                f"{parameter.opts[0]} is not for this command. {instead}", context
            )

    def take(command: Callable[..., R]) -> Callable[..., R]:
        for name in options or ("--url", "--token", "--ca", "--data"):
            command = click.option(
                name, metavar="…", hidden=True, expose_value=False, callback=refused
            )(command)
        return command

    return take
