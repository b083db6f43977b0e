"""The runtimes of a local run, by the same settings as a service's."""

import os
from collections.abc import Callable

from trainshed.engines.local.devices import NvmlDevices
from trainshed.engines.port import Capabilities
from trainshed.runtimes.images.service import Images, ImageSettings
from trainshed.runtimes.port import PackageSource
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.serve import clock
from trainshed.serve.settings import Settings


def new_runtimes(
    settings: Settings, source: PackageSource, promises: Callable[[], Capabilities]
) -> LocalRuntimes:
    """Those of the settings' cache. `promises`: the engine's."""

    def no_images() -> str:
        if promises().images:
            return ""
        return f"Container images need namespaces, and there are none here (isolation {promises().isolation})."

    return LocalRuntimes(
        settings.cache,
        source,
        RuntimeSettings(
            exact=settings.exact_runtimes,
            image_map=settings.images,
            hidden=(settings.data,),
            isolation=settings.isolation,
            has_gpu=lambda: bool(NvmlDevices(os.environ).find()),
        ),
        now=clock.now,
        images=Images(
            settings.cache / "images",
            ImageSettings(settings.container_tool, settings.image_pull),
            now=clock.now,
            unsupported=no_images,
        ),
    )
