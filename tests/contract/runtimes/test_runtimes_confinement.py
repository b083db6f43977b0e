"""Setup scripts of users run apart from the service and from other jobs (spec/program#isolation,
spec/invariants#secrets)."""

import asyncio
import json
import resource
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.runtimes.conftest import Workshop, probe, sdist
from trainshed.core.packages import JobPackage
from trainshed.runtimes.port import PackageFailed
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings

_PRYING = """
import json, os, pathlib, subprocess, sys
from setuptools import setup

def tried(work):
    try:
        return str(work())
    except OSError as failure:
        return "refused: " + type(failure).__name__

data, cache, base = {places!r}
facts = {{
    "secret": tried(lambda: pathlib.Path(data, "secret").read_text()),
    "data": tried(lambda: os.listdir(data)),
    "cache": tried(lambda: sorted(os.listdir(cache))),
    "written to the base": tried(lambda: pathlib.Path(base, "lib", "planted").write_text("x")),
    "written to the cache": tried(lambda: pathlib.Path(cache, "packages", "planted").write_text("x")),
    "environ": dict(os.environ),
    "home": os.path.expanduser("~"),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "uids": pathlib.Path("/proc/self/uid_map").read_text().split(),
}}
pathlib.Path("prying").mkdir(exist_ok=True)
pathlib.Path("prying/__init__.py").touch()
pathlib.Path("prying/facts.json").write_text(json.dumps(facts))
setup(name="prying", version="0.1", packages=["prying"], package_data={{"prying": ["facts.json"]}})
"""


@pytest.fixture(scope="module")
def level(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The strongest level of this machine; nothing can be kept apart without namespaces."""
    levels, refused = probe(tmp_path_factory.mktemp("probe"))
    if levels in ("", "session"):
        pytest.skip(f"no namespaces here: {refused}")
    return levels


def _facts(workshop: Workshop) -> dict[str, Any]:
    base = Path(workshop.base.template).parent
    places = (str(workshop.data), str(workshop.cache), str(base))
    workshop.objects.content["gs://b/prying.tar.gz"] = sdist(
        "prying", _PRYING.format(places=places), {}
    )
    layer = Path(workshop.prepare("gs://b/prying.tar.gz").template).parent
    (facts,) = layer.glob("lib/python3*/site-packages/prying/facts.json")
    return json.loads(facts.read_text())


def test_a_setup_script_sees_and_changes_nothing_of_the_service(
    workshop: Workshop, level: str
) -> None:
    facts = _facts(workshop)
    built = f"at {workshop.terms.level} (not {workshop.refused}; alone: {level}): {workshop.said}"
    assert facts["secret"].startswith("refused"), built
    assert facts["data"] == "[]" or facts["data"].startswith("refused")
    assert facts["written to the base"].startswith("refused")
    # Where the cache lies in /tmp, it was written to the script's own.
    assert not list(workshop.cache.rglob("planted"))
    assert int(facts["processes"]) < 20
    if level == "own-user":
        assert facts["uids"][1] != "0"


def test_a_link_of_a_package_leads_the_service_nowhere(workshop: Workshop) -> None:
    """What a script leaves behind is read by the service, which may read more than the script."""
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


def test_terms_that_cannot_be_kept_refuse_the_job_and_say_why(workshop: Workshop) -> None:
    """Issue: a weaker level was taken silently. Nothing else is tried, and nothing is installed."""
    source = sdist("termless", f"# {uuid.uuid4().hex}\nfrom setuptools import setup; setup()", {})
    workshop.objects.content["gs://b/termless.tar.gz"] = source
    terms = replace(workshop.terms, pids_base="/nonexistent")
    settings = RuntimeSettings(terms=lambda: terms)
    runtimes = LocalRuntimes(workshop.cache, workshop.objects, settings, now=time.monotonic_ns)
    lines: list[str] = []
    with pytest.raises(PackageFailed) as refused:
        asyncio.run(
            runtimes.prepare(workshop.choice, (JobPackage("gs://b/termless.tar.gz"),), lines.append)
        )
    runtimes.close()
    level = workshop.terms.level
    message = str(refused.value)
    assert f"cannot be run at isolation level {level}, at which programs run here" in message
    assert "/nonexistent" in message and "trainshed doctor" in message and "--isolation" in message
    assert any(f"at isolation level {level}" in line for line in lines)
    assert not any("package index" in line for line in lines)


@pytest.mark.soak
def test_what_a_package_leaves_is_never_read_whole_by_the_service(workshop: Workshop) -> None:
    """A script of any size becomes a command all the same."""
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
