"""gs:// by every served TensorFlow, in real jobs (`./dev test-runtimes`), in the cache of
$TRAINSHED_CACHE.
"""

import os
from collections.abc import Iterator

import pytest

from tests.e2e.packages import pack_program
from tests.e2e.running import CACHE, Service, custom_job, running, submit, worker_pool
from trainshed.runtimes.families import sheet_of

SHEET = sheet_of("tensorflow")
assert SHEET is not None
VERSIONS = [release.version for release in SHEET.releases if not release.for_gpu]
MINUTES = 60.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    place = tmp_path_factory.mktemp("tensorflow")
    entries = [f'[[images]]\npattern = "tf:{v}"\nruntime = "tensorflow {v}"\n' for v in VERSIONS]
    cache = os.environ.get("TRAINSHED_CACHE") or CACHE
    settings = f'cache = "{cache}"\n' + "\n".join(entries)
    with running(place / "data", settings=settings) as service:
        package = pack_program("tensorflow_storage", place)
        service.put("trainshed", package.name, package.read_bytes())
        yield service


@pytest.mark.runtimes
@pytest.mark.parametrize("version", VERSIONS)
def test_tensorflow_reads_and_writes_gs_uris(service: Service, version: str) -> None:
    """Files, directories, checkpoints, summaries, records, models, a large file, without warnings from
    TensorFlow.
    """
    package = {
        "executorImageUri": f"tf:{version}",
        "packageUris": ["gs://trainshed/tensorflow_storage-0.1.tar.gz"],
        "pythonModule": "trainer.task",
        "args": [f"--place=gs://trainshed/{version}"],
    }
    uid = submit(service, custom_job(worker_pool(pythonPackageSpec=package)))
    view = service.finish(uid, 20 * MINUTES)
    lines = service.lines(uid)
    assert view["state"] == "SUCCEEDED", "\n".join(lines[-40:])
    assert len([line for line in lines if line.startswith("worked: ")]) == 8
    assert lines[-1].startswith(f"TensorFlow {version}."), lines[-1]
    complaints = ("bearer token", "metadata", "libcurl", "SSL")
    assert not [line for line in lines if any(complaint in line for complaint in complaints)]
