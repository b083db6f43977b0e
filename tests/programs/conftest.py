"""One service for all programs. Three programs of small runtimes run at a time, or one of a large runtime."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.runtimes.podman import podman, storage
from tests.contract.runtimes.rootfs import with_programs
from tests.e2e.running import CACHE, running
from tests.programs.runner import HERE, Runner
from tests.programs.table import PROGRAMS, Program

TEST = "test_program_saves_a_model_that_can_be_loaded"


@pytest.fixture(scope="session")
def run_program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Program], None]]:
    """A function that runs a program, or waits for the end of its run."""
    selected = {item.name for item in request.session.items}
    place = tmp_path_factory.mktemp("programs")
    settings = f'cache = "{os.environ.get("TRAINSHED_CACHE") or CACHE}"\n'
    with running(place / "service", settings=settings) as service, ThreadPoolExecutor(3) as pool:
        runner = Runner(service, place)
        small = {
            program: pool.submit(runner.run, program)
            for program in PROGRAMS
            if program.small and f"{TEST}[{program.name}]" in selected
        }

        def run(program: Program) -> None:
            if program in small:
                small[program].result()
            elif program.own_image:
                _in_own_image(program, place)
            else:
                runner.run(program)

        yield run


def _in_own_image(program: Program, place: Path) -> None:
    """Run a program in its own image, which contains this machine's files.

    Its service has a separate image store and cache.
    """
    root = place / "root.tar"
    script = (HERE / "samples" / program.folder / "train.sh").read_text()
    with_programs(root, files={"train.sh": script})
    reference = f"localhost/{program.folder}:1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(storage(place)))
        changes = ("ENV PATH=/usr/local/bin:/bin", 'ENTRYPOINT ["sh", "/train.sh"]')
        podman("import", *(f"--change={change}" for change in changes), str(root), reference)
        try:
            with running(place / "images", settings=f'cache = "{place}/cache"\n') as service:
                Runner(service, place, reference).run(program)
        finally:
            podman("rmi", "--all", "--force")
