"""What the service starts as its own ends with it, whatever it does: real processes, stopped or busy."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainshed.buckets.setup import BucketRules, BucketSetup
from trainshed.replica.system import kernel
from trainshed.serve import children
from trainshed.serve.children import BucketKeeper, ForkedBuckets

pytestmark = pytest.mark.skipif(not kernel.LINUX, reason="the kernel's signal is Linux's")

FORKED = """
import sys, time
from pathlib import Path
from trainshed.buckets.setup import BucketRules
from trainshed.buckets.setup import BucketSetup
from trainshed.serve.children import ForkedBuckets, spawn_buckets
root = Path(sys.argv[1])
setup = BucketSetup(
    root=str(root / "buckets"),
    replicas=str(root / "b.sock"),
    tokens=str(root / "tokens.json"),
    rules=BucketRules(),
)
if sys.argv[2] == "forked":
    buckets = ForkedBuckets()
    buckets.serve(setup)
    pid = buckets.pid
else:
    pid = spawn_buckets(setup)
    while not (root / "b.sock").exists():
        time.sleep(0.01)
print(pid, flush=True)
time.sleep(600)
"""
ADVISED = """
import asyncio, contextlib
from trainshed.studies.advisor.client import ProcessAdvisor
from trainshed.studies.advisor.process import Kind
async def main():
    advisor = ProcessAdvisor()
    with contextlib.suppress(Exception):
        await advisor._ask(Kind.SUGGEST, None)  # It has answered, so it is ready.
    print(advisor._process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
BUSY = "import re; re.fullmatch('(a+)+', 'a' * 60 + 'b')"


def ends_within(pid: int, seconds: float) -> bool:
    """Whether a process that is not our child is gone, or a zombie, within so many seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def orphaned(script: str, *arguments: str, hold: signal.Signals) -> int:
    """The child of a service that was killed while the child was held."""
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        child = int(service.stdout.readline())
        os.kill(child, hold)
        service.kill()
    return child


@pytest.mark.parametrize("how", ["forked", "spawned"])
def test_the_bucket_process_is_gone_a_second_after_a_service_that_was_killed(
    tmp_path: Path, how: str
) -> None:
    """Even one that does nothing at all any more, as in an endless computation."""
    child = orphaned(FORKED, str(tmp_path), how, hold=signal.SIGSTOP)
    assert ends_within(child, 1)


def test_the_advisor_is_gone_a_second_after_a_service_that_was_killed() -> None:
    child = orphaned(ADVISED, hold=signal.SIGSTOP)
    assert ends_within(child, 1)


def test_a_bucket_process_that_does_not_end_is_killed_at_the_services_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "PATIENCE", 0.3)
    setup = BucketSetup(root="/nowhere", replicas="", tokens="", rules=BucketRules())
    busy = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", f"import signal; signal.signal(15, print); {BUSY}"],
        {},
    )
    os.kill(busy, signal.SIGSTOP)

    async def story() -> None:
        keeper = BucketKeeper(setup, busy)
        keeper.start()
        async with asyncio.timeout(5):
            await keeper.close()

    asyncio.run(story())
    with pytest.raises(ProcessLookupError):
        os.kill(busy, 0)


def test_a_bucket_process_that_never_served_is_gone_when_it_is_dismissed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "PATIENCE", 0.3)
    buckets = ForkedBuckets()
    os.kill(buckets.pid, signal.SIGSTOP)
    buckets.dismiss()
    with pytest.raises(ProcessLookupError):
        os.kill(buckets.pid, 0)
