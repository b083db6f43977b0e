"""Decides when an image is pulled from its registry, and what is used if that fails: images on this machine
are used, except that the registry is asked first about the tag `latest`."""

from collections.abc import Callable

from trainshed.runtimes.images.commands import FAILURES, ImageConfig, ImageTool, ToolFailed
from trainshed.runtimes.images.references import host_of, is_local, names_registry, tag_of
from trainshed.runtimes.port import BuildFailed, PackageFailed, Progress
from trainshed.runtimes.stop import Stop

_FRESH = 60 * 10**9
"""ns for which a registry's answer is valid: replicas of one job start one after another, and are
restarted."""
_SILENT = 600 * 10**9
"""ns for which a registry that did not answer is not asked again if the image is on this machine."""


class PullPolicy:
    def __init__(self, now: Callable[[], int]) -> None:
        #: Returns nanoseconds.
        self._now = now
        self._good_until: dict[str, int] = {}

    def is_due(self, reference: str) -> bool:
        """Whether the registry has to be asked before the image on this machine is used. Never blocks."""
        # An image without a registry in its name may have been built here, and a registry's image of that
        # name would replace it.
        moves = tag_of(reference) == "latest" and names_registry(reference)
        return moves and self._now() > self._good_until.get(reference, -1)

    def get(
        self, tool: ImageTool, reference: str, tell: Progress, stop: Stop, *, can_do_without: bool
    ) -> ImageConfig | None:
        """Return the image as the tool has it, pulled if that is due. None: it is no longer available, and
        the caller can do without. Blocks. Raises ToolFailed, BuildFailed, PackageFailed, OSError."""
        config = tool.inspect(reference)
        due = self.is_due(reference)
        if config is not None and not due:
            return config
        if is_local(reference):
            if can_do_without:
                return None
            raise PackageFailed(
                f"The image {reference} is of no registry, and {tool.name} has none of that name here. "
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
            tell(f"What is here of {reference} is used.")
            return config
        tell(f"{reference} is pulled: {(self._now() - began) / 1e9:.1f} s.")
        self._good_until[reference] = self._now() + _FRESH
        config = tool.inspect(reference)
        if config is None:
            raise BuildFailed(
                f"{tool.name} pulled the image {reference} and does not find it any more."
            )
        return config


def _not_pulled(tool: ImageTool, reference: str, failure: ToolFailed) -> Exception:
    words = str(failure).lower()
    known = (entry for entry in FAILURES["advice"] if any(sign in words for sign in entry["signs"]))
    advice: str = next((entry["text"] for entry in known), "")
    advice = advice.format(tool=tool.name, host=host_of(reference)) or _how_to_have_it(tool)
    message = f"The image {reference} could not be pulled with {tool.name}: {failure}. {advice}"
    return PackageFailed(message) if failure.final else BuildFailed(message)


def _how_to_have_it(tool: ImageTool) -> str:
    return (
        f"Put it here ({tool.name} build, {tool.name} load, {tool.name} import), give a name that a registry "
        "answers to, or let an operator map it to a runtime or to another image (setting images)."
    )
