"""The error of a service that cannot start, with advice for errors of the operating system."""

import contextlib
from collections.abc import Generator

import click


class ServiceStartFailed(click.ClickException):
    """The service cannot start. The message contains the reason and advice."""


@contextlib.contextmanager
def start_errors(what: str) -> Generator[None]:
    """Convert an OSError within the context to ServiceStartFailed with advice. `what`: the operation that
    failed."""
    try:
        yield
    except OSError as failure:
        # The OSError remains the cause of the new error, so that `up` detects a full disk.
        raise ServiceStartFailed(
            f"{what}: {failure}. Fix the cause, or choose another directory on a local file system with "
            "--data, or another --port or --host."
        ) from failure
