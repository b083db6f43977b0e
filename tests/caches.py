"""Runtime caches for tests: caches of other users, and removal of a test's cache."""

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
    """Root of the environments. All runs of a checkout share them, for each user separately."""
    if user == os.geteuid() and os.access(ROOT, os.W_OK):
        return CACHE
    cache = CACHE.with_name(f"{CACHE.name}-{user}")
    if user != os.geteuid():
        create_user_cache(cache, user)
    return cache


def cache_for_users() -> Path:
    """Return a copy of root's cache with environments whose interpreter other users may run."""
    cache = CACHE.with_name(f"{CACHE.name}-users")
    create_user_cache(cache, os.geteuid())
    return cache


def create_user_cache(cache: Path, user: int) -> None:
    """Create a user's cache with the default environment. The user would build the same one; `./dev test-all`
    tests that build.
    """
    cache.mkdir(parents=True, exist_ok=True)
    CACHE.parent.chmod(0o755)  # The process that created the cache may have made it private.
    os.chown(cache, user, user)
    final = cache / "environments"
    if SOAKS or final.exists() or (built := for_all_users()) is None:
        return
    draft = Path(tempfile.mkdtemp(dir=cache))
    copy_environment(built, draft, final)
    subprocess.run(["chown", "-hR", f"{user}:{user}", str(draft)], check=True)
    with contextlib.suppress(OSError):  # Another test has just created it.
        draft.rename(final)
    remove_tree(draft)


def copy_environment(built: Prefix, draft: Path, final: Path) -> None:
    """Copy the environment to the directory `draft`, as a build for `final` would write it."""
    subprocess.run(["cp", "-a", str(built.root), str(draft)], check=True)
    copy = Prefix(draft / built.root.name, built.python)
    # Its links contain its own path.
    shutil.rmtree(copy.template)
    write_template(copy, own := Prefix(final / built.root.name, built.python))
    let_read(copy.template)
    boot, _, _ = (copy.root / ".built").read_text().partition("\n")
    (copy.root / ".built").write_text(f"{boot}\n{own.root}")


@functools.cache
def for_all_users() -> Prefix | None:
    """Return the default environment on an interpreter that all users may run, or None if no such interpreter
    fits.
    """
    return of_most_jobs(Interpreters({"PATH": "/usr/bin:/bin"}))


def of_most_jobs(interpreters: Interpreters | None = None) -> Prefix | None:
    """Return the default environment, built once for all runs, or None if no interpreter fits."""
    return _build_environment(lambda catalog: catalog.for_image(SKLEARN), interpreters)


def of_reducers() -> Prefix | None:
    """Like `of_most_jobs`, but on the Python that reducers prefer."""
    return _build_environment(lambda catalog: catalog.for_family(REDUCERS))


def _build_environment(
    choose: Callable[[LocalCatalog], RuntimeChoice | RuntimeRefusal], interpreters: Interpreters | None = None
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
    """Join the threads that finish an environment after its build, because they write to the cache."""
    settle()


def remove_cache(root: Path) -> None:
    wait_for_builds()
    remove_tree(root)
