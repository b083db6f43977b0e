"""`trainshed emulate`: a temporary service for the tests of other programs."""

import contextlib
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import click

from trainshed.cli.environment import setting_lines, variables
from trainshed.cli.processes import own_service


@contextlib.contextmanager
def emulator(port: int, plan: Path | None, capture: Path | None) -> Generator[dict[str, str]]:
    """Run an emulator, and yield the environment variables for its clients, and `TRAINSHED_PID`.

    `port`: 0 = any free port. `plan` and `capture`: see `serve.emulation`. Raises click.ClickException.
    """
    files = {"--plan": plan, "--capture": capture}
    words = [word for name, path in files.items() if path for word in (name, str(path.absolute()))]
    with own_service(None, "--emulate", "--port", str(port), *words) as endpoint:
        known = {name: value for name, value in variables(endpoint).items() if value}
        yield {**known, "TRAINSHED_PID": str(endpoint.pid)}


@click.command()
@click.option(
    "--port", type=int, default=8080, show_default=True, help="Port to listen on; 0 = any free port."
)
@click.option(
    "--plan",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="JSON file with rules that set the results of jobs.",
)
@click.option(
    "--capture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to which each request is appended, as one line of JSON.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def command(*, port: int, plan: Path | None, capture: Path | None, program: tuple[str, ...]) -> None:
    """Serve tests on this machine, without authentication, until Ctrl-C or the end of PROGRAM.

    Prints the variables for clients, or sets them for PROGRAM and returns its exit status. All data are in a
    temporary directory, which is deleted at the end.

    \b
    In a test's command line:   trainshed emulate -- pytest tests
    """
    with emulator(port, plan, capture) as values:
        if program:
            try:
                ended = subprocess.run(program, env={**os.environ, **values}, check=False)
            except OSError as failure:
                raise click.ClickException(
                    f"The program {program[0]} cannot be started: {failure.strerror}. Check its path."
                ) from None
            raise SystemExit(ended.returncode if ended.returncode >= 0 else 128 - ended.returncode)
        click.echo("\n".join(setting_lines(values)))
        # Close standard output, so that `$(trainshed emulate &)` does not wait for further output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        with contextlib.suppress(KeyboardInterrupt):
            os.waitid(os.P_PID, int(values["TRAINSHED_PID"]), os.WEXITED | os.WNOWAIT)
