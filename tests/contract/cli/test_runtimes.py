"""`trainshed runtimes`: list, build, warm and gc with a cache directory and without a service
(spec/runtimes#environments)."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.caches import copy_environment, of_reducers, remove_cache
from trainshed.replica.system import cache_leases
from trainshed.runtimes.environments import Base, Environments
from trainshed.runtimes.port import Progress
from trainshed.runtimes.shelf import Shelf
from trainshed.serve import runtimes

Invoke = Callable[..., Result]
DAY = 86400 * 10**9


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("runtimes") / "cache"
    yield root
    remove_cache(root)


@pytest.fixture
def invoke(cache: Path) -> Invoke:
    def run(name: str, *arguments: str) -> Result:
        return CliRunner().invoke(runtimes.command, [name, *arguments, "--cache", str(cache)])

    return run


def test_runtime_list_shows_every_version_and_its_python(invoke: Invoke) -> None:
    listed = invoke("list", "--format", "json")
    assert listed.exit_code == 0, (listed.output, listed.exception)
    offers = json.loads(listed.stdout)
    families = {offer["family"] for offer in offers}
    assert {"python", "scikit-learn", "xgboost", "pytorch", "tensorflow"} <= families
    assert all(offer["python"] or offer["needs"].startswith("Python ") for offer in offers)
    assert all(offer["built"] == "" for offer in offers)
    lines = invoke("list").output.splitlines()
    assert lines[0].split() == ["FAMILY", "VERSION", "PYTHON", "STATE", "SIZE", "LAST", "USED"]
    assert sum("not built" in line or "needs Python" in line for line in lines) == len(offers)


def test_gc_with_the_downloads_option_removes_only_downloads(invoke: Invoke, cache: Path) -> None:
    """spec/runtimes. Built environments remain, regardless of their age."""
    at = time.time_ns() - 60 * DAY
    built = Shelf(cache / "environments").put("kept", lambda draft: draft.mkdir())
    os.utime(built / ".built", ns=(at, at))
    archive = cache / "uv" / "archive-v0" / "abc"
    (archive / "thing-1.0.dist-info").mkdir(parents=True)
    answer = invoke("gc", "--downloads", "--dry-run")
    assert "would go  downloads of uv" in answer.output
    assert "environment" not in answer.output
    remove_cache(cache)


def test_runtime_is_built_with_progress_listed_and_removed(
    invoke: Invoke, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/contract/runtimes/test_runtimes_built.py tests the build itself."""
    kept = of_reducers()
    assert kept is not None
    environments = cache / "environments"
    environments.mkdir(parents=True)

    def building(_: Environments, base: Base, progress: Progress, *, in_background: bool = True) -> None:
        assert not in_background, "the operator waits for the whole environment"
        progress(f"Building the runtime {base.key}.")
        copy_environment(kept, environments, environments)

    with monkeypatch.context() as patch:
        patch.setattr(Environments, "build", building)
        built = invoke("build", "reduction-server")
    assert built.exit_code == 0, built.output
    assert f"Building the runtime {kept.root.name}." in built.output
    assert "reduction-server on Python 3." in built.output.splitlines()[-1]
    again = invoke("build", "reduction-server")
    assert again.exit_code == 0
    assert "Building" not in again.output

    offers = json.loads(invoke("list", "reduction-server", "--format", "json").output)
    (offer,) = offers
    path = Path(offer["built"])
    assert path.is_dir()
    assert offer["bytes"] == int((path / "size.txt").read_text()) > 10**6
    listed = invoke("list", "reduction-server").output
    assert any("reduction-server" in line and " built " in line for line in listed.splitlines())

    # The runtime was used just now, so even an age of 0 keeps it.
    assert "0 removed" in invoke("gc", "--older-than", "0").output
    at = time.time_ns() - 40 * DAY
    os.utime(path / ".built", ns=(at, at))
    assert "0 removed" in invoke("gc", "--older-than", "41d").output
    dry = invoke("gc", "--dry-run").output
    assert "would go  environment reduction-server-" in dry
    assert "1 would be removed" in dry
    assert path.is_dir()
    (held,) = cache_leases.hold_leases([str(path)])
    stays = invoke("gc").output
    assert "stays  environment reduction-server-" in stays
    assert "(a program uses it)" in stays
    os.close(held)
    assert "removed  environment reduction-server-" in invoke("gc").output
    assert not path.exists()
    assert not Shelf(cache / "environments").has(path.name)
