"""Applies the settings of the container image that an agent itself runs in to the programs that run in it as
well."""

import os
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from trainshed.core.launch import LaunchPlan

_CLUSTERS: Final = "KUBERNETES_"
"""How variables begin that the cluster sets for its own clients."""
_OURS: Final = ("HOSTNAME",)


def completed(plan: LaunchPlan) -> LaunchPlan:
    """Return a plan whose program runs in this process's own image with the image's variables and working
    directory where the plan sets none; other plans unchanged. Raises FileNotFoundError if the directory does
    not exist."""
    image = plan.software.image
    if image is None or image.directory:
        return plan
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_CLUSTERS) and name not in _OURS
    }
    environ = own | dict(plan.environ)
    image = replace(image, workdir=image.workdir or str(Path.cwd()))
    return replace(
        plan, environ=tuple(environ.items()), software=replace(plan.software, image=image)
    )
