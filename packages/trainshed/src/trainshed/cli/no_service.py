"""Refuses options that name a service, for commands that talk to none. Imports no client."""

from collections.abc import Callable
from typing import TypeVar

import click

R = TypeVar("R")


def refuses_service(instead: str, *options: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Return a decorator for a command that talks to no service: it fails with a usage error if --url,
    --token, --ca or --data is given. `instead`: the sentence that says what to do instead. `options`: the
    options that are refused, if not all four."""

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
