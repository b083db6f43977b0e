"""Whether an image brings a program of its own to run (SPEC §3, facts §5.2)."""

from trainshed.core.catalog.images import parse_prebuilt
from trainshed.core.runtime import CONTAINER, REDUCERS, RuntimeChoice


def needs_command(runtime: RuntimeChoice, image_uri: str) -> bool:
    """Whether a container of that image runs only what the job says: an environment stands for the image, and has no
    entry point (a reducer's has). Where the runtime is not known, because it was refused, the image's name decides."""
    if not runtime.family:
        return parse_prebuilt(image_uri) is not None
    return runtime.family not in (CONTAINER, REDUCERS)
