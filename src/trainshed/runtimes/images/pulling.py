"""When an image is fetched from its registry, and what counts where that fails: an operator's choice."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from trainshed.runtimes.images.progress import PullProgress
from trainshed.runtimes.images.references import (
    host_of,
    is_local,
    is_pinned,
    names_registry,
    tag_of,
)
from trainshed.runtimes.images.tool import ImageConfig, ImageTool, ToolFailed
from trainshed.runtimes.port import BuildFailed, PackageFailed, Progress
from trainshed.runtimes.stopping import Stop

MISSING, ALWAYS, NEVER = "missing", "always", "never"
POLICIES = (MISSING, ALWAYS, NEVER)
"""`missing`: what is here is used, but for the tag `latest` of a registry, which is asked first. `always`: it is asked
about every tag, and must answer. `never`: only what is here is used."""

_FRESH = 60 * 10**9
"""ns for which an answer of a registry counts: replicas of one job start one after the other, and are restarted."""
_SILENT = 600 * 10**9
"""ns for which a registry that did not answer is not asked again where the image is here."""

_ADVICE = (
    (
        (
            *("unauthorized", "authentication required", "no basic auth", "access denied"),
            *("access to the resource is denied", "statuscode: 403", "(forbidden)"),
        ),
        "Check the name; if the image is not for everybody, the operator of this service logs in as its user: "
        "{tool} login {host}.",
    ),
    (
        ("does not look like a tls handshake", "gave http response to https"),
        "{host} is a registry without TLS: the operator of this service allows {tool} to use it "
        "(docs/containers.md, A registry of your own).",
    ),
    (
        ("x509: ",),
        "{tool} does not trust the certificate of {host}: the operator of this service gives it the one that it is signed "
        "with (docs/containers.md, A registry of your own).",
    ),
    (
        ("short-name",),
        "The name does not say which registry it is of: give it in full, docker.io/library/NAME:TAG for an official image "
        "of Docker Hub, or let an operator map it to a runtime or to another image (setting images).",
    ),
    (
        ("no space left",),
        "A disk is full: free some space on the one of {tool}'s images ({tool} image prune) and on the one of the cache "
        "(trainshed runtimes gc).",
    ),
)
"""Signs in the words of a tool, and what to do about it."""


class Pulling:
    """`policy`: one of `POLICIES`. `scratch`: gives a directory for what is half pulled. `now`: nanoseconds."""

    def __init__(
        self,
        policy: str,
        scratch: Callable[[], AbstractContextManager[Path]],
        now: Callable[[], int],
    ) -> None:
        self._scratch = scratch
        self._policy = policy
        self._now = now
        self._good_until: dict[str, int] = {}

    def is_due(self, reference: str) -> bool:
        """Whether its registry is to be asked before the image that is here is used. Never blocks."""
        if self._policy == NEVER or is_pinned(reference):
            return False
        # Without a registry in its name it may have been made here, and another one of that name would replace it.
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
        """The image as the tool has it, pulled if that is due. None: it cannot be had any more, and the caller can do
        without. Blocks. Raises ToolFailed, BuildFailed, PackageFailed, OSError."""
        config = tool.inspect(reference)
        due = self.is_due(reference)
        if config is not None and not due:
            return config
        if self._policy == NEVER or is_local(reference):
            if can_do_without:
                return None
            why = "is of no registry" if is_local(reference) else "is not pulled (image_pull)"
            raise PackageFailed(
                f"The image {reference} {why}, and {tool.name} has none of that name here. {_how_to_have_it(tool)}"
            )
        tell(f"Pulling {reference} with {tool.name}.")
        progress = PullProgress(reference, tell, self._now)
        try:
            with self._scratch() as scratch:
                tool.pull(reference, scratch, progress.hear, stop)
        except ToolFailed as failure:
            if stop.asked:
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
    # Where one thing is most probably it, nothing else is proposed.
    advice = next((told for signs, told in _ADVICE if any(sign in words for sign in signs)), "")
    advice = advice.format(tool=tool.name, host=host_of(reference)) or _how_to_have_it(tool)
    message = f"The image {reference} could not be pulled with {tool.name}: {failure}. {advice}"
    return PackageFailed(message) if failure.final else BuildFailed(message)


def _how_to_have_it(tool: ImageTool) -> str:
    return (
        f"Put it here ({tool.name} build, {tool.name} load, {tool.name} import), give a name that a registry answers to, "
        "or let an operator map it to a runtime or to another image (setting images)."
    )
