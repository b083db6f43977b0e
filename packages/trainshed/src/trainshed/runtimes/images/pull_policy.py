"""Decides when an image is pulled from its registry, and what is used if that fails; reports progress of
pulls."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct

from trainshed.core.units import Nanos
from trainshed.runtimes.images.commands import logged
from trainshed.runtimes.images.references import (
    host_of,
    is_local,
    is_pinned,
    names_registry,
    tag_of,
)
from trainshed.runtimes.images.tool import ImageConfig, ImageTool, ToolFailed
from trainshed.runtimes.images.unpacking import megabytes
from trainshed.runtimes.port import BuildFailed, PackageFailed, Progress
from trainshed.runtimes.stop import Stop

MISSING, ALWAYS, NEVER = "missing", "always", "never"
POLICIES = (MISSING, ALWAYS, NEVER)
"""`missing`: images on this machine are used, except that the registry is asked first about the tag `latest`.
`always`: the registry is asked about every tag, and must answer. `never`: only images on this machine are
used."""

_FRESH = 60 * 10**9
"""ns for which a registry's answer is valid: replicas of one job start one after another, and are
restarted."""
_SILENT = 600 * 10**9
"""ns for which a registry that did not answer is not asked again if the image is on this machine."""

_ADVICE = (
    (
        (
            *("unauthorized", "authentication required", "no basic auth", "access denied"),
            *("access to the resource is denied", "statuscode: 403", "(forbidden)"),
        ),
        "Check the name; if the image is not for everybody, the operator of this service logs in "
        "as its user: "
        "{tool} login {host}.",
    ),
    (
        ("does not look like a tls handshake", "gave http response to https"),
        "{host} is a registry without TLS: the operator of this service allows {tool} to use it "
        "(docs/containers.md, A registry of your own).",
    ),
    (
        ("x509: ",),
        "{tool} does not trust the certificate of {host}: the operator of this service gives it "
        "the one that it is signed "
        "with (docs/containers.md, A registry of your own).",
    ),
    (
        ("short-name",),
        "The name does not say which registry it is of: give it in full, "
        "docker.io/library/NAME:TAG for an official image "
        "of Docker Hub, or let an operator map it to a runtime or to another image (setting images).",
    ),
    (
        ("no such host", "failure in name resolution", "server misbehaving"),
        "No address of {host} is found. Check the name; if it is right, the DNS of this service's machine "
        "has to know it (getent hosts {host}).",
    ),
    (
        ("no space left",),
        "A disk is full: free some space on the one of {tool}'s images ({tool} image prune) and on "
        "the one of the cache "
        "(trainshed runtimes gc).",
    ),
)
"""Phrases in a tool's errors, and advice for each."""


_SECOND = 10**9
_EVERY, _SELDOM = 3 * _SECOND, 10
"""ns between two lines at first; later each comes after another tenth of the time that has passed."""
_IDLE = 10 * _SECOND
"""ns without a byte after which that is reported."""
_STUCK = 300 * _SECOND
"""ns without a byte after which a pull is given up."""
_LONGEST_SILENCE = 3600 * _SECOND
"""The same if the tool shows no progress, because it writes layers to its store or gives no sizes."""
_AT_ONCE = 6
"""Layers that podman fetches at a time; it names the next ones only when it begins with them."""

_LAYER = re.compile(
    r"(?:Copying blob (?:sha256:)?(?P<podman>[0-9a-f]{12})[0-9a-f]*|(?P<docker>[0-9a-f]{12}):) *(?P<state>.*)"
)
_SIZES = re.compile(r"(?<![\d.])([\d.]++) ?([kKMGT]?)(i?)[bB] ?/ ?([\d.]+) ?([kKMGT]?)(i?)[bB]")
_HERE = ("skipped", "Already exists")
_FETCHED = ("done", "Verifying Checksum", "Download complete", "Extracting", "Pull complete")


class _Layer(Struct):
    """One layer of a pull. `done`, `total`: bytes as they are sent; both 0: the tool has not said."""

    done: int = 0
    total: int = 0
    fetched: bool = False
    was_here: bool = False


class PullProgress:
    """Reports the progress of one pull of `reference`. `now`: nanoseconds. For one thread."""

    def __init__(self, reference: str, tell: Progress, now: Callable[[], int]) -> None:
        self._reference = reference
        self._tell = tell
        self._now = now
        self._began = self._moved = self._told = now()
        self._told_bytes = 0
        self._layers: dict[str, _Layer] = {}

    def hear(self, line: str) -> None:
        """Handle a line; "" = some time has passed. Raises ToolFailed if nothing has come for too long."""
        now = self._now()
        if line and self._takes(line):
            self._moved = now
        still = now - self._moved
        if still > self._patience():
            raise ToolFailed(
                f"nothing has come from the registry for {still / _SECOND:.0f} seconds"
            )
        passed = now - self._began
        if now - self._told > max(_EVERY, passed // _SELDOM):
            self._tell(self._state(now, still))
            self._told, self._told_bytes = now, self._bytes()

    def summary(self) -> str:
        """Return a line for the log on what was pulled, when the pull is over."""
        seconds = f"{(self._now() - self._began) / _SECOND:.1f} s"
        layers = self._layers.values()
        here = sum(layer.was_here for layer in layers)
        came = len(layers) - here
        parts = [f"{megabytes(self._bytes())} in {_layers(came)}"] if came else []
        if here:
            parts.append(f"{_layers(here)} {'was' if here == 1 else 'were'} here already")
        return f"{self._reference} is pulled: {', '.join([*parts, seconds])}."

    def _takes(self, line: str) -> bool:
        """Whether the line says something new."""
        match = _LAYER.match(line)
        if match is None:
            level, message = logged(line)
            if level and "retrying" in message:
                self._tell(message)
            return True
        before = self._bytes(), len(self._layers), self._fetched()
        layer = self._layers.setdefault(match["podman"] or match["docker"], _Layer())
        state = match["state"]
        layer.was_here = layer.was_here or state.startswith(_HERE)
        layer.fetched = layer.fetched or state.startswith((*_HERE, *_FETCHED))
        if layer.fetched:
            layer.done = layer.total
        elif sizes := _SIZES.search(state):
            layer.done = _bytes(*sizes.group(1, 2, 3))
            layer.total = _bytes(*sizes.group(4, 5, 6))
        return before != (self._bytes(), len(self._layers), self._fetched())

    def _patience(self) -> int:
        """Return the ns that may pass without a byte."""
        waiting = [layer for layer in self._layers.values() if not layer.fetched]
        sized = all(layer.total for layer in waiting)
        return _STUCK if not self._layers or (waiting and sized) else _LONGEST_SILENCE

    def _state(self, now: Nanos, still: int) -> str:
        parts = [f"{(now - self._began) / _SECOND:.0f} s"]
        if self._layers:
            total = sum(layer.total for layer in self._layers.values())
            waiting = [layer for layer in self._layers.values() if not layer.fetched]
            may_grow = len(waiting) >= _AT_ONCE or not all(layer.total for layer in waiting)
            of = "of at least" if may_grow else "of"
            parts = [
                f"{megabytes(self._bytes())} {of} {megabytes(total)}",
                f"{self._fetched()} {of} {_layers(len(self._layers))}",
                *parts,
            ]
        came = self._bytes() - self._told_bytes
        if still > _IDLE:
            parts.append(f"nothing has come for {still / _SECOND:.0f} s")
        elif came > 0:
            parts.append(f"{came * _SECOND / (now - self._told) / 1e6:,.1f} MB/s")
        elif self._layers and self._fetched() == len(self._layers):
            parts.append("being written to the store")
        return f"Pulling {self._reference}: {', '.join(parts)}."

    def _bytes(self) -> int:
        return sum(layer.done for layer in self._layers.values())

    def _fetched(self) -> int:
        return sum(layer.fetched for layer in self._layers.values())


def _layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def _bytes(number: str, unit: str, binary: str) -> int:
    return round(float(number) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " "))


class PullPolicy:
    """Pulls images according to one of `POLICIES`."""

    def __init__(
        self,
        policy: str,
        scratch: Callable[[], AbstractContextManager[Path]],
        now: Callable[[], int],
    ) -> None:
        #: Makes a directory for a half-pulled image.
        self._scratch = scratch
        #: One of `POLICIES`.
        self._policy = policy
        #: Returns nanoseconds.
        self._now = now
        self._good_until: dict[str, int] = {}

    def is_due(self, reference: str) -> bool:
        """Whether the registry has to be asked before the image on this machine is used. Never blocks."""
        if self._policy == NEVER or is_pinned(reference):
            return False
        # An image without a registry in its name may have been built here, and a registry's image of that
        # name would replace it.
        moves = tag_of(reference) == "latest" and names_registry(reference)
        if self._policy == MISSING and not moves:
            return False
        return self._now() > self._good_until.get(reference, -1)

    def get(
        self,
        tool: ImageTool,
        reference: str,
        tell: Progress,
        stop: Stop,
        *,
        can_do_without: bool,
    ) -> ImageConfig | None:
        """Return the image as the tool has it, pulled if that is due. None: it is no longer available, and
        the caller can do without. Blocks. Raises ToolFailed, BuildFailed, PackageFailed, OSError."""
        config = tool.inspect(reference)
        due = self.is_due(reference)
        if config is not None and not due:
            return config
        if self._policy == NEVER or is_local(reference):
            if can_do_without:
                return None
            why = "is of no registry" if is_local(reference) else "is not pulled (image_pull)"
            raise PackageFailed(
                f"The image {reference} {why}, and {tool.name} has none of that name here. "
                f"{_how_to_have_it(tool)}"
            )
        tell(f"Pulling {reference} with {tool.name}.")
        progress = PullProgress(reference, tell, self._now)
        try:
            with self._scratch() as scratch:
                tool.pull(reference, scratch, progress.hear, stop)
        except ToolFailed as failure:
            if stop.is_asked:
                raise
            tell(f"{reference} could not be pulled: {failure}.")
            here = config is not None or can_do_without
            if not here or self._policy == ALWAYS:
                raise _not_pulled(tool, reference, failure) from failure
            self._good_until[reference] = self._now() + _SILENT
            tell(f"What is here of {reference} is used.")
            return config
        tell(progress.summary())
        self._good_until[reference] = self._now() + _FRESH
        config = tool.inspect(reference)
        if config is None:
            raise BuildFailed(
                f"{tool.name} pulled the image {reference} and does not find it any more."
            )
        return config


def _not_pulled(tool: ImageTool, reference: str, failure: ToolFailed) -> Exception:
    words = str(failure).lower()
    # If one cause is the most likely, only its remedy is proposed.
    advice = next((text for signs, text in _ADVICE if any(sign in words for sign in signs)), "")
    advice = advice.format(tool=tool.name, host=host_of(reference)) or _how_to_have_it(tool)
    message = f"The image {reference} could not be pulled with {tool.name}: {failure}. {advice}"
    return PackageFailed(message) if failure.final else BuildFailed(message)


def _how_to_have_it(tool: ImageTool) -> str:
    return (
        f"Put it here ({tool.name} build, {tool.name} load, {tool.name} import), give a name that "
        "a registry answers to, "
        "or let an operator map it to a runtime or to another image (setting images)."
    )
