"""The type of options that limit how long a command waits."""

from typing import Any

import click

from trainshed.cli.text.moments import seconds_of


class TimeLimit(click.ParamType[float]):
    """Converts `45`, `90s`, `10m`, `2h` or `1d` to seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds. A float is a default of the command's, in seconds already."""
        if isinstance(value, float):
            return value
        try:
            return seconds_of(value)
        except ValueError:
            self.fail(f"write a time such as 45s, 10m or 2h, not {value!r}.", param, ctx)
