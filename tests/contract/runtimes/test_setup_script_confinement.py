"""Users' setup scripts run isolated from the service and from other jobs (spec/program#isolation,
spec/invariants#secrets)."""

import asyncio
import resource
import time
import uuid
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.contract.runtimes.conftest import Workshop, probe, sdist
from trainshed.core.packages import JobPackage
from trainshed.runtimes.port import PackageFailed
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings


@pytest.fixture(scope="module")
def level(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The strongest level of this machine. Without namespaces the tests are skipped."""
    levels, refused = probe(tmp_path_factory.mktemp("probe"))
    if levels in ("", "session"):
        pytest.skip(f"no namespaces here: {refused}")
    return levels


def test_symlinks_of_a_package_are_not_followed_by_the_service(workshop: Workshop) -> None:
    """The service reads the files that a script leaves, and has more rights than the script
    (confused deputy)."""
    secret = workshop.data / "secret"
    workshop.objects.content["gs://b/linking.tar.gz"] = sdist(
        "linking",
        "import os, sys, glob\n"
        "from setuptools import setup\n"
        "from setuptools.command.build_py import build_py\n"
        "class Plant(build_py):\n"
        "    def run(self):\n"
        "        super().run()\n"
        "        for site in glob.glob(os.environ['TMPDIR'] + '/../../lib/python3*/site-packages'):\n"
        "            os.makedirs(site + '/bin', exist_ok=True)\n"
        f"            os.symlink({str(secret)!r}, site + '/bin/stolen')\n"
        "            os.symlink('/etc', site + '/etc-1.0.dist-info')\n"
        "setup(name='linking', version='0.1', py_modules=['linking'], cmdclass={'build_py': Plant})\n",
        {"linking.py": "x = 1\n"},
    )
    mode = Path("/etc").stat().st_mode
    prepared = workshop.prepare("gs://b/linking.tar.gz")
    layer = Path(prepared.template).parent
    (planted,) = layer.glob("lib/python3*/site-packages/etc-1.0.dist-info")
    assert planted.is_symlink()
    assert not (layer / "scripts" / "stolen").exists()
    assert Path("/etc").stat().st_mode == mode


def test_package_is_rejected_with_a_reason_if_its_setup_script_cannot_be_confined(workshop: Workshop) -> None:
    """Earlier, a weaker level was used silently. Now nothing else is tried, and nothing is installed."""
    source = sdist("termless", f"# {uuid.uuid4().hex}\nfrom setuptools import setup; setup()", {})
    workshop.objects.content["gs://b/termless.tar.gz"] = source
    terms = replace(workshop.terms, bases={"pids": "/nonexistent"})
    settings = RuntimeSettings(terms=lambda: terms)
    runtimes = LocalRuntimes(workshop.cache, workshop.objects, settings, now=time.monotonic_ns)
    lines: list[str] = []
    with pytest.raises(PackageFailed) as refused:
        asyncio.run(runtimes.prepare(workshop.choice, (JobPackage("gs://b/termless.tar.gz"),), lines.append))
    runtimes.close()
    level = workshop.terms.level
    message = str(refused.value)
    assert f"cannot run at isolation level {level}, the level of programs here" in message
    assert "/nonexistent" in message and "trainshed doctor" in message and "--isolation" in message
    assert any(f"at isolation level {level}" in line for line in lines)
    assert not any("package index" in line for line in lines)


@pytest.mark.soak
def test_service_never_loads_large_package_files_into_memory(workshop: Workshop) -> None:
    """A script of any size becomes a command nevertheless."""
    workshop.objects.content["gs://b/heavy.tar.gz"] = sdist(
        "heavy",
        "from setuptools import setup\n"
        "open('heavy-run', 'w').write('#!/usr/bin/python3\\nprint(1)\\n')\n"
        "open('heavy-data', 'w').truncate(160 << 20)\n"
        "setup(name='heavy', version='0.1', py_modules=['heavy'], scripts=['heavy-run', 'heavy-data'])\n",
        {"heavy.py": f"x = {uuid.uuid4().hex!r}\n"},
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    layer = Path(workshop.prepare("gs://b/heavy.tar.gz").template).parent
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10
    assert (layer / "scripts" / "heavy-run").read_text().startswith("#!/usr/bin/env python3")
    assert (layer / "scripts" / "heavy-data").stat().st_size == 160 << 20
