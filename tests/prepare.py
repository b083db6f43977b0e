"""Build the environments that nearly every test run uses, in `build/test-cache`.

They are PyTorch, the default environment, reducers, TensorBoard and gsutil. `tests/run.sh` calls this module
in the first run of a checkout, before the tests start.
"""

import asyncio
import os
import time

from tests import caches, torch_runtime
from tests.e2e.packages import Objects
from tests.e2e.running import CACHE, SKLEARN
from trainshed.core.runtime import REDUCERS, RuntimeChoice
from trainshed.runtimes.families import GSUTIL, TENSORBOARD
from trainshed.runtimes.service import LocalRuntimes


def main() -> None:
    torch_runtime.torch_python()
    if os.geteuid() == 0:
        caches.for_all_users()
    runtimes = LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns)
    catalog = runtimes.catalog
    wanted = (
        catalog.for_image(SKLEARN),
        catalog.for_family(REDUCERS),
        catalog.for_family(TENSORBOARD),
        catalog.for_family(GSUTIL),
    )
    try:
        for choice in wanted:
            if isinstance(choice, RuntimeChoice):
                asyncio.run(runtimes.prepare(choice, ()))
    finally:
        runtimes.close()


if __name__ == "__main__":
    main()
