"""`trainshed runtimes`: lists runtimes, builds them in advance, and clears the cache. Needs no service."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from trainshed.cli.commands import Group
from trainshed.cli.output import format_option, print_data
from trainshed.cli.text.colours import keep_colours
from trainshed.cli.text.moments import TimeLimit, duration, gibibytes
from trainshed.serve import clock
from trainshed.serve.settings import Settings, load

if TYPE_CHECKING:
    from trainshed.runtimes.cache_cleaner import Removal
    from trainshed.runtimes.inventory import Inventory, InventoryEntry


def _cache_options(command: Callable[..., None]) -> Callable[..., None]:
    cache = click.option(
        "--cache",
        type=click.Path(path_type=Path),
        help="Cache directory. Default: $TRAINSHED_CACHE or ~/.cache/trainshed.",
    )
    config = click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="TOML file with the settings of the service, as for `trainshed up`. Default: no file.",
    )
    return cache(config(command))


@click.group(cls=Group, short_help="List, build and clear runtimes.")
def command() -> None:
    """List, build and clear the runtimes of programs. Without a command: list them."""


command.default = "list"


@command.command("list")
@click.argument("family", required=False, default="")
@format_option
@_cache_options
def list_(family: str, form: str, cache: Path | None, config: Path | None) -> None:
    """List families and versions with their Python, size and last use."""
    settings = load(config, {"cache": cache})
    offers = _with_build_errors(lambda: _inventory(settings).offers(family or None))
    if form == "json":
        print_data([asdict(offer) | {"built": str(offer.built or "")} for offer in offers])
        return
    for line in _table(offers):
        click.echo(line)
    if not family:
        click.echo(f"\nThe cache is {settings.cache}. List its contents: trainshed runtimes gc --dry-run")
        return
    for offer in offers:
        if offer.left_out:
            click.echo(f"Not included in {offer.version or family}: {', '.join(offer.left_out)}.")


@command.command(short_help="Build runtimes before jobs need them.")
@click.argument("families", nargs=-1, metavar="[FAMILY[=VERSION]]...")
@click.option("--python", metavar="X.Y", help="Python version. Default: the newest supported version.")
@_cache_options
def build(*, families: tuple[str, ...], python: str | None, cache: Path | None, config: Path | None) -> None:
    """Build the newest version of each FAMILY, or VERSION, unless it exists. Without a FAMILY, build the
    environment of jobs without an image."""
    from trainshed.runtimes.shelf import settle

    def echo_line(line: str) -> None:
        # A line of the build's output. It may contain text of users' setup scripts.
        click.echo(keep_colours(line))

    inventory = _inventory(load(config, {"cache": cache}))
    for wanted in families or ("",):
        family, _, version = wanted.partition("=")
        offer = _with_build_errors(
            partial(inventory.build, family or None, echo_line, version or None, python or None)
        )
        name = f"{offer.family} {offer.version}".strip()
        settle()
        click.echo(f"{name} on Python {offer.python} is built, {_size(offer.bytes)}: {offer.built}")


@command.command(short_help="Remove cached files that are no longer used.")
@click.option(
    "--older-than",
    "age",
    type=TimeLimit(),
    metavar="AGE",
    default="30d",
    show_default=True,
    help="Remove only files unused for at least this time: 30d, 12h; 0: all.",
)
@click.option("--downloads", is_flag=True, help="Remove only the downloads. New builds then take longer.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@_cache_options
def gc(*, age: float, downloads: bool, dry_run: bool, cache: Path | None, config: Path | None) -> None:
    """Remove environments, layers, packages and unpacked images that were not used recently.

    Files that a running program uses stay, also while no service runs. Removed files are created again when a
    job needs them.
    """
    from trainshed.runtimes.cache_cleaner import CacheCleaner
    from trainshed.runtimes.installer import Installer

    older_than = round(age * 1e9)
    root = load(config, {"cache": cache}).cache
    clearing = CacheCleaner(root, Installer(root / "uv"), now=clock.now(), older_than=older_than)
    gone = count = 0
    for piece in clearing.downloads() if downloads else clearing.old_entries():
        removed = not piece.why and (dry_run or _remove(piece))
        if removed:
            gone += piece.bytes
            count += 1
        outcome = "stays" if not removed else "would go" if dry_run else "removed"
        why = "" if removed else piece.why or "it is in use again"
        because = f"  ({why})" if why else ""
        click.echo(
            f"{outcome}  {piece.kind} {piece.name}  {_size(piece.bytes)}, {_age_text(piece.used)}{because}"
        )
    word = "would be removed" if dry_run else "removed"
    click.echo(f"{count} {word}, {_size(gone)}; cache {root}.")


def _remove(piece: "Removal") -> bool:
    try:
        return piece.remove()
    except OSError as failure:
        raise click.ClickException(
            f"{piece.kind} {piece.name} cannot be removed: {failure}. Run the command as the owner of the "
            "cache."
        ) from None


def _inventory(settings: Settings) -> "Inventory":
    from trainshed.runtimes.inventory import Inventory

    return Inventory(settings.cache, now=clock.now)


def _with_build_errors(work: Callable[[], Any]) -> Any:
    from trainshed.runtimes.port import BuildFailed

    try:
        return work()
    except BuildFailed as failure:
        raise click.ClickException(str(failure)) from None


def _table(offers: "list[InventoryEntry]") -> list[str]:
    from trainshed.cli.text.tables import Field, table_of

    def state(offer: "InventoryEntry") -> str:
        return "built" if offer.built else "not built" if offer.python else f"needs {offer.needs}"

    def if_built(show: Callable[["InventoryEntry"], str]) -> Callable[["InventoryEntry"], str]:
        return lambda offer: show(offer) if offer.built else ""

    fields = (
        Field("FAMILY", "family"),
        Field("VERSION", "version"),
        Field("PYTHON", "python"),
        Field("STATE", None, state),
        Field("SIZE", None, if_built(lambda offer: _size(offer.bytes)), right=True),
        Field("LAST USED", None, if_built(lambda offer: _age_text(offer.used))),
    )
    return table_of(fields, offers)


def _size(size: int) -> str:
    return gibibytes(size) if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _age_text(used: int) -> str:
    return f"{duration(clock.now() - used)} ago"
