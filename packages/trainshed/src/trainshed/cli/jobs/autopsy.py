"""`trainshed jobs autopsy`: opens and copies the files that failed replicas left."""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import click

from trainshed.cli.client import Client
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import find_job, job_path, takes_job
from trainshed.cli.jobs.shell import run_shell
from trainshed.cli.text.printable import one_line


@click.command(short_help="Inspect the files that a failed replica left.")
@takes_job
@click.argument("replica", required=False)
@click.option(
    "--attempt", type=click.IntRange(min=1), help="Attempt of the replica. Default: the newest."
)
@click.option(
    "--copy",
    "target",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path, file_okay=False),
    help="Copy the files into this new directory.",
)
@click.option(
    "-c", "--command", "line", metavar="LINE", help="Run this command line instead of a shell."
)
@takes_endpoint
@click.pass_obj
def command(
    session: Session,
    endpoint: Endpoint,
    *,
    job: str,
    replica: str | None,
    attempt: int | None,
    target: Path | None,
    line: str | None,
) -> None:
    """Open a shell in the file system that a failed replica left, in the view that its program had, with its
    environment but for secrets. Without REPLICA: the first one that failed, of the newest attempt.

    What failed replicas leave is kept for a day (setting autopsy_ttl).
    """
    if target and line:
        raise click.UsageError("Give only one of --copy and --command.")
    client = endpoint.client()
    uid = find_job(client, job, endpoint.project)["uid"]
    which = {"replica": replica or "", **({"attempt": attempt} if attempt else {})}
    if target is not None:
        _copy(client, uid, which, target)
    else:
        status = run_shell(client, uid, {**which, "autopsy": True}, line or "")
        raise SystemExit(status)


def _copy(client: Client, uid: str, which: dict[str, Any], target: Path) -> None:
    if target.exists() and any(target.iterdir()):
        raise click.ClickException(
            f"{target} is not empty; name a directory that is not there yet."
        )
    path = job_path(uid, "/autopsyFiles")
    with client.stream(path, replica=which["replica"], attempt=which.get("attempt")) as answer:
        try:
            parts = cast(IO[bytes], _AnswerFile(answer.chunks()))  # It is only ever read from.
            with tarfile.open(fileobj=parts, mode="r|") as archive:
                count, left_out = _extract(archive, target)
        except tarfile.ReadError as failure:
            raise click.ClickException(
                f"The copy broke off ({failure}); what is in {target} is not all of it. Try again."
            ) from None
    for name, cause in left_out:
        click.echo(f"left out: {one_line(name)}: {one_line(cause)}", err=True)
    click.echo(f"{count} files and directories are in {target}.")


def _extract(archive: tarfile.TarFile, target: Path) -> tuple[int, list[tuple[str, str]]]:
    """Extract an archive; return how many members were extracted, and (name, cause) of those left out. A
    program made these files, so members that would lead out of the directory are left out."""
    left_out: list[tuple[str, str]] = []

    def safe(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        nonlocal count
        try:
            kept = tarfile.data_filter(member, path)
        except tarfile.FilterError as wrong:
            left_out.append((member.name, str(wrong)))
            return None
        count += 1
        return kept

    count = 0
    target.mkdir(parents=True, exist_ok=True)
    archive.extractall(target, filter=safe)
    return count, left_out


class _AnswerFile:
    """An answer's chunks as a file that can be read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (chunk := next(self._chunks, b"")):
            self._rest += chunk
        data, self._rest = self._rest[:size], self._rest[size:]
        return data
