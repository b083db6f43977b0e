"""The most used modules can be imported in every runtime of their family (`./dev test-runtimes`)."""

import json
import time
from pathlib import Path

import pytest

from tests.contract.runtimes.conftest import copy_template
from tests.contract.runtimes.test_families import CACHE, prepare
from tests.e2e.packages import Objects
from tests.runtime_contents.modules import MODULES
from trainshed.core.runtime import RuntimeChoice
from trainshed.runtimes.families import FAMILIES, parse_minor
from trainshed.runtimes.service import LocalRuntimes

_IMPORTING = """
import importlib, json, sys
failures = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except BaseException as failure:
        failures[name] = repr(failure)
print(json.dumps(failures))
"""
_RELEASES = [
    (sheet.family, release.version)
    for sheet in FAMILIES
    for release in sheet.releases
    if not release.is_slim
    and not release.for_gpu
    and any(sheet.family in module.families for module in MODULES)
]


@pytest.mark.runtimes
@pytest.mark.parametrize(("family", "version"), _RELEASES)
def test_modules_listed_for_a_runtime_can_be_imported(family: str, version: str, tmp_path: Path) -> None:
    """Modules that the family's sheet lists as unavailable are exempt."""
    runtimes = LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns)
    choice = runtimes.catalog.for_family(family, version)
    runtimes.close()
    if not isinstance(choice, RuntimeChoice):
        pytest.skip(f"{family} {version} is NOT tested: {choice.reason}")
    (sheet,) = (entry for entry in FAMILIES if entry.family == family)
    release, python = sheet.release(version), parse_minor(choice.python_version)
    assert release is not None
    assert python is not None
    left_out = {entry.name for entry in sheet.lacks(release, python)}
    names = [
        module.name for module in MODULES if family in module.families and module.distribution not in left_out
    ]
    replica = copy_template(prepare(CACHE, choice, []), tmp_path)
    answer = replica.run("python3", "-W", "ignore", "-c", _IMPORTING, json.dumps(names))
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1]) == {}
