"""Caches of runtimes for tests: those of other users, and taking away one that a test has made."""

import asyncio
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e.packages import Objects
from tests.e2e.running import CACHE, ROOT, SKLEARN
from tests.soaks import SOAKS
from trainshed.core.runtime import REDUCERS, RuntimeChoice, RuntimeRefusal
from trainshed.runtimes.catalog import LocalCatalog
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.prefix import Prefix, write_template
from trainshed.runtimes.service import LocalRuntimes
from trainshed.runtimes.shelf import settle
from trainshed.runtimes.trees import let_read, remove_tree


def cache_of(user: int) -> Path:
    """Environments are kept for all runs of a checkout, for each user apart."""
    if user == os.geteuid() and os.access(ROOT, os.W_OK):
        return CACHE
    cache = CACHE.with_name(f"{CACHE.name}-{user}")
    if user != os.geteuid():
        furnish(cache, user)
    return cache


def cache_for_users() -> Path:
    """Root's, with environments on an interpreter that other users may run."""
    cache = CACHE.with_name(f"{CACHE.name}-users")
    furnish(cache, os.geteuid())
    return cache


def furnish(cache: Path, user: int) -> None:
    """Make a user's cache, with the environment of most jobs in it, which the user would build the same: how
    that goes is for ./dev test-all."""
    cache.mkdir(parents=True, exist_ok=True)
    CACHE.parent.chmod(0o755)  # Whoever made it may have kept it to himself.
    os.chown(cache, user, user)
    final = cache / "environments"
    if SOAKS or final.exists() or (built := for_all_users()) is None:
        return
    draft = Path(tempfile.mkdtemp(dir=cache))
    copy_environment(built, draft, final)
    subprocess.run(["chown", "-hR", f"{user}:{user}", str(draft)], check=True)
    with contextlib.suppress(OSError):  # Another test has just made it.
        draft.rename(final)
    remove_tree(draft)


def copy_environment(built: Prefix, draft: Path, final: Path) -> None:
    """Into the directory `draft`, as it would have been built for the directory `final`."""
    subprocess.run(["cp", "-a", str(built.root), str(draft)], check=True)
    copy = Prefix(draft / built.root.name, built.python)
    # What is in it leads to its own path.
    shutil.rmtree(copy.template)
    write_template(copy, own := Prefix(final / built.root.name, built.python))
    let_read(copy.template)
    boot, _, _ = (copy.root / ".built").read_text().partition("\n")
    (copy.root / ".built").write_text(f"{boot}\n{own.root}")


@functools.cache
def for_all_users() -> Prefix | None:
    """The environment of most jobs on an interpreter that all users may run; None where no such interpreter
    fits it."""
    return of_most_jobs(Interpreters({"PATH": "/usr/bin:/bin"}))


def of_most_jobs(interpreters: Interpreters | None = None) -> Prefix | None:
    """The environment of most jobs, built once for all runs; None where no interpreter fits it."""
    return _built(lambda catalog: catalog.for_image(SKLEARN), interpreters)


def of_reducers() -> Prefix | None:
    """As `of_most_jobs`, on the Python that is preferred for reducers."""
    return _built(lambda catalog: catalog.named(REDUCERS))


def _built(
    choose: Callable[[LocalCatalog], RuntimeChoice | RuntimeRefusal],
    interpreters: Interpreters | None = None,
) -> Prefix | None:
    runtimes = LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns, interpreters=interpreters)
    try:
        choice = choose(runtimes.catalog)
        if not isinstance(choice, RuntimeChoice):
            return None
        prepared = asyncio.run(runtimes.prepare(choice, ()))
    finally:
        runtimes.close()
    return Prefix(Path(prepared.template).parent, choice.python_version)


def wait_for_builds() -> None:
    """Join the threads that finish an environment after its build: they write into the cache."""
    settle()


def remove_cache(root: Path) -> None:
    wait_for_builds()
    remove_tree(root)
