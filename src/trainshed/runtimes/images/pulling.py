"""When an image is fetched from its registry, and what counts where that fails: an operator's choice."""

from collections.abc import Callable

from trainshed.runtimes.images.references import is_local, is_pinned, names_registry, tag_of
from trainshed.runtimes.images.tool import ImageConfig, ImageTool, ToolFailed
from trainshed.runtimes.port import BuildFailed, PackageFailed, Progress

MISSING, ALWAYS, NEVER = "missing", "always", "never"
POLICIES = (MISSING, ALWAYS, NEVER)
"""`missing`: what is here is used, but for the tag `latest` of a registry, which is asked first. `always`: it is asked
about every tag, and must answer. `never`: only what is here is used."""

_FRESH = 60 * 10**9
"""ns for which an answer of a registry counts: replicas of one job start one after the other, and are restarted."""
_SILENT = 600 * 10**9
"""ns for which a registry that did not answer is not asked again where the image is here."""


class Pulling:
    """`policy`: one of `POLICIES`. `now`: nanoseconds."""

    def __init__(self, policy: str, now: Callable[[], int]) -> None:
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
        self, tool: ImageTool, reference: str, tell: Progress, *, can_do_without: bool
    ) -> ImageConfig | None:
        """The image as the tool has it, pulled if that is due. None: it cannot be had any more, and the caller can do
        without. Blocks. Raises ToolFailed, BuildFailed, PackageFailed."""
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
        try:
            tool.pull(reference, tell)
        except ToolFailed as failure:
            here = config is not None or can_do_without
            if not here or self._policy == ALWAYS:
                raise _not_pulled(tool, reference, failure) from failure
            self._good_until[reference] = self._now() + _SILENT
            tell(f"{reference} could not be pulled: {failure}. What is here is used.")
            return config
        self._good_until[reference] = self._now() + _FRESH
        config = tool.inspect(reference)
        if config is None:
            raise BuildFailed(
                f"{tool.name} pulled the image {reference} and does not find it any more."
            )
        return config


def _not_pulled(tool: ImageTool, reference: str, failure: ToolFailed) -> Exception:
    message = f"The image {reference} could not be pulled with {tool.name}: {failure}. {_how_to_have_it(tool)}"
    return PackageFailed(message) if failure.final else BuildFailed(message)


def _how_to_have_it(tool: ImageTool) -> str:
    return (
        f"Put it here ({tool.name} build, {tool.name} load, {tool.name} import), give a name that a registry answers to, "
        "or let an operator map it to a runtime or to another image (setting images)."
    )
