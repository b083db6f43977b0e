"""Provides the container images of this machine. It finds them, pulls them according to the operator's
settings, unpacks them once, and describes them."""

import contextlib
import functools
import hashlib
import os
import platform
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from trainshed.core.runtime import Image
from trainshed.eventloop.background import log_failure
from trainshed.runtimes.images import unpacking
from trainshed.runtimes.images.commands import FAILURES, ImageConfig, ImageTool, ToolFailed
from trainshed.runtimes.images.references import host_of, is_local, is_pinned, names_registry, tag_of
from trainshed.runtimes.images.tools import AUTO, Tools
from trainshed.runtimes.port import BuildFailed, PackageFailed, Progress
from trainshed.runtimes.shelf import Shelf
from trainshed.runtimes.single_flight import SingleFlight
from trainshed.runtimes.stop import Stop

_WORKERS = 4
_ROOT, _CONFIG = "root", "image.json"
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_EMULATED = {"amd64": "x86_64", "arm64": "aarch64"}
_FRESH = 60 * 10**9
"""Cache time in ns of a registry's response. Replicas of one job start one after another, and may restart."""
_SILENT = 600 * 10**9
"""Time in ns before the next request to an unresponsive registry, if this machine has the image."""


class KnownImages:
    """Remembers the image ID of each reference, in one small file per reference below `root`. Safe for
    threads and processes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, reference: str) -> str | None:
        """Return the image ID that was last recorded for a reference, or None if none was. Reads one small
        file."""
        try:
            return self._place(reference).read_text()
        except (OSError, ValueError):
            return None

    def keep(self, reference: str, image_id: str) -> None:
        """Record the image ID of a reference. Raises OSError."""
        self._root.mkdir(parents=True, exist_ok=True)
        draft = self._root / f".{secrets.token_hex(8)}"
        draft.write_text(image_id)
        draft.replace(self._place(reference))

    def _place(self, reference: str) -> Path:
        return self._root / hashlib.sha256(reference.encode()).hexdigest()[:32]


class PullPolicy:
    """Decides when to pull an image from its registry, and which image to use if the pull fails. An image on
    this machine is used without a pull, unless it has the tag `latest`."""

    def __init__(self, now: Callable[[], int]) -> None:
        #: Clock that returns nanoseconds.
        self._now = now
        self._good_until: dict[str, int] = {}

    def is_due(self, reference: str) -> bool:
        """Whether to pull the image even if this machine has it. Never blocks."""
        # Do not pull an image without a registry in its name, because it may have been built here. A
        # registry's image of the same name could replace it.
        moves = tag_of(reference) == "latest" and names_registry(reference)
        return moves and self._now() > self._good_until.get(reference, -1)

    def get(
        self, tool: ImageTool, reference: str, tell: Progress, stop: Stop, *, can_do_without: bool
    ) -> ImageConfig | None:
        """Return the configuration of the tool's image. Pull the image first if necessary. If the tool has no
        such image and cannot pull it, return None if `can_do_without` is set, and raise an error otherwise.
        Blocks. Raises ToolFailed, BuildFailed, PackageFailed, OSError."""
        config = tool.inspect(reference)
        due = self.is_due(reference)
        if config is not None and not due:
            return config
        if is_local(reference):
            if can_do_without:
                return None
            raise PackageFailed(
                f"The image {reference} has no registry, and {tool.name} has no image of that name here. "
                f"{_how_to_have_it(tool)}"
            )
        tell(f"Pulling {reference} with {tool.name}.")
        began = self._now()
        try:
            tool.pull(reference, tell, stop)
        except ToolFailed as failure:
            if stop.is_asked:
                raise
            tell(f"{reference} could not be pulled: {failure}.")
            if config is None and not can_do_without:
                raise _not_pulled(tool, reference, failure) from failure
            self._good_until[reference] = self._now() + _SILENT
            tell(f"The local copy of {reference} is used.")
            return config
        tell(f"{reference} is pulled: {(self._now() - began) / 1e9:.1f} s.")
        self._good_until[reference] = self._now() + _FRESH
        config = tool.inspect(reference)
        if config is None:
            raise BuildFailed(
                f"{tool.name} pulled the image {reference}, but then did not find it. Submit the job again."
            )
        return config


class Images:
    """The container images of this machine. `root`: the shelf of unpacked images, which is inaccessible to
    other users, because an image may contain setuid programs. `tool`: see `Tools`."""

    def __init__(
        self,
        root: Path,
        tool: str = AUTO,
        *,
        now: Callable[[], int],
        environ: Mapping[str, str] = os.environ,
        unsupported: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._root = root.absolute()
        #: Clock that returns nanoseconds, used only for durations.
        self._now = now
        #: Returns the reason why this service cannot run images, as a sentence, or None if it can.
        self._unsupported = unsupported
        self._shelf = Shelf(self._root)
        self._known = KnownImages(self._root / ".references")
        self._tools = Tools(tool, environ, now)
        self._pulling = PullPolicy(now)
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="images")
        # Stop a pull when no job waits for it any longer, because a pull may transfer gigabytes.
        self._flights = SingleFlight[Image](self._workers, abandons=True)

    def search(self) -> None:
        # Ignore the executor's error while the service is being closed: a search is then unnecessary.
        with contextlib.suppress(RuntimeError):
            log_failure(self._workers.submit(self._tools.search), "looking for container tools")

    def close(self) -> None:
        """Kill running operations, and start no further ones. Stop the callers of `prepare` first. Blocks
        until the threads exit."""
        self._tools.close()
        self._workers.shutdown(wait=True, cancel_futures=True)

    def refusal(self, reference: str) -> str | None:
        """Return the reason why no program can run in that image here, and the remedy, as sentences. Returns
        None if a program can. Never blocks: uses the results of the last search."""
        if reason := self._unsupported():
            return reason
        if self._find_unpacked(self._known.find(reference)) is not None:
            return None
        reason = self._tools.missing()
        if reason and self._tools.is_stale():
            # Search again, so that the service needs no restart after the installation of a tool.
            self.search()
        return reason or None

    def ready(self, reference: str) -> Image | None:
        """Return the image if it is unpacked and needs no request to the tool, otherwise None. Makes a few
        file-system calls."""
        known = self._known.find(reference)
        # Ask the tool unless the reference is pinned or no tool exists. A tag may refer to another image by
        # now, and only the tool has its current image ID.
        if known is None or not (is_pinned(reference) or self._tools.missing()):
            return None
        return self._find_unpacked(known)

    async def prepare(self, reference: str, progress: Progress | None) -> Image:
        """Get and unpack the image if necessary, once for all waiting callers, and return it. Raises
        PackageFailed, BuildFailed."""
        ahead = self._flights.count_others(reference)
        if progress is not None and ahead >= _WORKERS:
            progress(f"{ahead} other images are being fetched; {reference} follows after one of them.")
        return await self._flights.run(reference, functools.partial(self._prepare, reference), progress)

    def _prepare(self, reference: str, tell: Progress, stop: Stop) -> Image:
        tool = self._tools.search()
        known = self._known.find(reference)
        unpacked = self._find_unpacked(known)
        if tool is None:
            if unpacked is not None:
                tell(f"{self._tools.missing()} The unpacked copy of {reference} is used.")
                return unpacked
            raise BuildFailed(f"The image {reference} is not available. {self._tools.missing()}")
        try:
            config = self._pulling.get(tool, reference, tell, stop, can_do_without=unpacked is not None)
            if config is None:
                assert unpacked is not None
                return unpacked
            _check_machine(reference, config)
            image = self._unpack(tool, reference, config, tell, stop)
            self._known.keep(reference, config.id)
        except ToolFailed as failure:
            raise BuildFailed(
                f"The image {reference} is not available from {tool.name}: {failure}."
            ) from failure
        except unpacking.DiskFull as failure:
            raise BuildFailed(
                f"The image {reference} cannot be unpacked: {failure}. Free some space (trainshed runtimes "
                "gc), or choose another cache directory with $TRAINSHED_CACHE."
            ) from failure
        except unpacking.UnpackingFailed as failure:
            raise BuildFailed(f"The image {reference} cannot be unpacked: {failure}.") from failure
        except OSError as failure:
            raise BuildFailed(
                f"The image {reference} cannot be unpacked in {self._root}: {failure}. Check the disk and "
                "the permissions of the cache directory, or choose another one with $TRAINSHED_CACHE."
            ) from failure
        return image

    def _unpack(
        self, tool: ImageTool, reference: str, config: ImageConfig, tell: Progress, stop: Stop
    ) -> Image:
        self._open_shelf()

        def fill(draft: Path) -> None:
            unpacking.check_room(self._root, config.size)
            tell(f"Unpacking {reference}, {unpacking.megabytes(config.size)}.")
            started = self._now()
            draft.mkdir()
            (draft / _ROOT).mkdir(0o755)
            # The container's name differs for each cache directory. If an export is killed, the next export
            # removes the remaining container by this name.
            mark = hashlib.sha256(str(self._root).encode()).hexdigest()[:8]
            name = f"trainshed-{config.id[:16]}-{mark}"
            unpacking.unpack(draft / _ROOT, lambda into: tool.export(config.id, name, into, tell, stop))
            unpacking.remove_devices(draft / _ROOT)
            (draft / _CONFIG).write_bytes(msgspec.json.encode(config))
            tell(f"The image is unpacked: {(self._now() - started) / 1e9:.1f} s.")

        self._shelf.put(config.id, fill, writable=_ROOT, progress=tell, stop=stop)
        image = self._find_unpacked(config.id)
        assert image is not None
        return image

    def _open_shelf(self) -> None:
        """Create the shelf. Raises OSError."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        stat = self._root.stat()
        if stat.st_uid != os.geteuid():
            # Reject the directory. Its owner could change the unpacked images, and an image also specifies
            # the user of its programs.
            raise PermissionError(
                f"the directory belongs to user {stat.st_uid}, but unpacked images must belong to the "
                "service's user"
            )
        if stat.st_mode & 0o077:
            self._root.chmod(0o700)

    def _find_unpacked(self, image_id: str | None) -> Image | None:
        if image_id is None or not self._shelf.has(image_id):
            return None
        place = self._shelf.path(image_id)
        try:
            config = msgspec.json.decode((place / _CONFIG).read_bytes(), type=ImageConfig)
        except OSError:
            return None
        self._shelf.record_use(image_id)
        return config.image(str(place / _ROOT))


def _check_machine(reference: str, config: ImageConfig) -> None:
    """Raise PackageFailed if the image is for another kind of machine."""
    machine = platform.machine()
    ours = _MACHINES.get(machine, machine)
    system, theirs = config.system or "linux", config.architecture or ours
    emulated = (_BINFMT / f"qemu-{_EMULATED.get(theirs, theirs)}").exists()
    fits = theirs == ours or emulated or (ours, theirs) == ("amd64", "386")
    if system != "linux" or not fits:
        raise PackageFailed(
            f"The image {reference} is for {system}/{theirs}, but this machine is linux/{ours}. Build the "
            "image for this machine (--platform), or use another one."
        )


def _not_pulled(tool: ImageTool, reference: str, failure: ToolFailed) -> Exception:
    words = str(failure).lower()
    known = (entry for entry in FAILURES["advice"] if any(sign in words for sign in entry["signs"]))
    advice: str = next((entry["text"] for entry in known), "")
    advice = advice.format(tool=tool.name, host=host_of(reference)) or _how_to_have_it(tool)
    message = f"The image {reference} could not be pulled with {tool.name}: {failure}. {advice}"
    return PackageFailed(message) if failure.final else BuildFailed(message)


def _how_to_have_it(tool: ImageTool) -> str:
    return (
        f"Add the image to this machine ({tool.name} build, {tool.name} load, {tool.name} import), use a "
        "name with a registry, or ask the operator to map it to a runtime or another image (setting images)."
    )
