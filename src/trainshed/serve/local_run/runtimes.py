"""The runtimes of a local run, by the same settings as a service's."""

import os

from trainshed.engines.local.devices import NvmlDevices
from trainshed.engines.local.engine import LocalEngine
from trainshed.runtimes.images.service import Images, ImageSettings
from trainshed.runtimes.port import PackageSource
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.serve import clock
from trainshed.serve.engine_adapters import build_terms
from trainshed.serve.settings import Settings


def new_runtimes(settings: Settings, source: PackageSource, engine: LocalEngine) -> LocalRuntimes:
    """Those of the settings' cache, for programs of the engine."""

    def no_images() -> str:
        promised = engine.capabilities()
        if promised.images:
            return ""
        return f"Container images need namespaces, and there are none here (isolation {promised.isolation})."

    return LocalRuntimes(
        settings.cache,
        source,
        RuntimeSettings(
            exact=settings.exact_runtimes,
            image_map=settings.images,
            terms=build_terms(settings, engine),
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
