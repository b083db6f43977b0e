"""Programs in container images behind the runtimes port: the image, and whether a job's packages are there
for it."""

import asyncio

from trainshed.core.runtime import RuntimeChoice
from trainshed.runtimes.images.service import Images
from trainshed.runtimes.port import (
    BuildFailed,
    PackageFailed,
    PackageSource,
    PreparedRuntime,
    Progress,
)


class ContainerRuntimes:
    """Container images as prepared runtimes. Packages are installed in the image when its program starts
    (`trainshed.replica.supervisor.executor`)."""

    def __init__(self, images: Images | None, source: PackageSource) -> None:
        #: None where none can be run.
        self._images = images
        self._source = source

    def ready(self, choice: RuntimeChoice, package_uris: tuple[str, ...]) -> PreparedRuntime | None:
        """See `Runtimes`."""
        if self._images is None:
            return None
        try:
            self._look(package_uris)
        except (PackageFailed, BuildFailed):
            # `prepare` will say so where a failure belongs.
            return None
        image = self._images.ready(choice.image)
        return PreparedRuntime("", image=image) if image else None

    async def prepare(
        self, choice: RuntimeChoice, package_uris: tuple[str, ...], progress: Progress | None
    ) -> PreparedRuntime:
        """See `Runtimes`."""
        if self._images is None:
            raise BuildFailed(
                f"The image {choice.image} cannot be run: this service does not run container "
                "images any more."
            )
        await asyncio.to_thread(self._look, package_uris)
        return PreparedRuntime("", image=await self._images.prepare(choice.image, progress))

    def _look(self, package_uris: tuple[str, ...]) -> None:
        for uri in package_uris:
            try:
                self._source.fingerprint(uri)
            except FileNotFoundError as missing:
                raise PackageFailed(
                    f"The package {uri} does not exist. Upload it, or correct the job's package URIs."
                ) from missing
            except OSError as failure:
                raise BuildFailed(f"The package {uri} cannot be looked at: {failure}.") from failure
