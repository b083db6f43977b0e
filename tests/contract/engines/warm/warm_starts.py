"""Cold and warm starts of programs: how each program started, and its comparable results."""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.contract.engines.conftest import EngineHarness
from tests.contract.engines.warm.runtimes import Runtime
from trainshed.core.launch import Account, WarmStart
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.core.names import JobUid
from trainshed.runtimes.prefix import Prefix

FILE, TEXT = "file", "text"
ENVIRON = (("PYTHONUNBUFFERED", "1"), ("CUDA_VISIBLE_DEVICES", ""), ("MINE", "a $b"))
#: The notice of a program that started warm with the runtime's `framework` imported.
WARM = "started warm: framework 1.2 imported"


async def start(
    harness: EngineHarness,
    runtime: Runtime,
    *argv: str,
    warm: WarmStart | None,
    prefix: Prefix | None = None,
    environ: Mapping[str, str] | None = None,
    project: str = "one",
) -> JobUid:
    """Start a module with its arguments, `file` with a path, or `text` with a program's text."""
    how = {FILE: (), TEXT: ("-c",)}.get(argv[0], ("-m", argv[0]))
    return await harness.run(
        "python3",
        *(*how, *argv[1:]),
        software=runtime.software(prefix or runtime.layer),
        environ=(*ENVIRON, *(environ or {}).items()),
        warm=warm,
        account=Account(project=project),
    )


async def start_notice(harness: EngineHarness, uid: JobUid) -> str:
    """Return the notice about the start; "" for a program without preloaded imports."""
    await harness.end(uid)
    return " ".join(event.text for event in harness.events_of(uid) if isinstance(event, ReplicaNoted))


async def prepare_preloader(
    harness: EngineHarness, runtime: Runtime, *modules: str, pause: float = 0.25
) -> str:
    """Run programs until a preloader exists, and return the notice of the first program after it.
    `pause`: seconds between two attempts."""
    text = ""
    for _ in range(400):
        warm = runtime.warm(*modules)
        uid = await start(harness, runtime, "none", warm=warm)
        text = await start_notice(harness, uid)
        if "being imported" not in text:
            return text
        await asyncio.sleep(pause)
    raise AssertionError(text)


class Outcome(NamedTuple):
    """The results of a program, without the differences that every process has."""

    exit_code: int | None
    signal: int | None
    #: Lines of standard output and standard error.
    output: list[str]
    errors: list[str]


async def outcome(harness: EngineHarness, uid: JobUid) -> Outcome:
    exited = (await harness.exit(uid)).exit
    lines = [(str(line["s"]), str(line["m"])) for line in harness.log(uid)]
    names = rf"/slots/{uid}/|host-{uid}-|trainshed-[0-9a-z]+-{uid}-| at 0x\w+"
    # Prefixes of log lines of XGBoost and TensorFlow, and addresses in XGBoost's stacks.
    logged = r"\[\d\d:\d\d:\d\d\]|(?<=^[IWE]0000 00:00:)[0-9. ]+|\[0x\w+\]"
    own = re.compile(f"{names}|{logged}")
    # The standard library's files are links in each environment. A module that was imported ahead
    # shows its file in the runtime (docs/warm-starts.md).
    library = re.compile(r'File \\*"\S+/(?:layer|base)/lib/python[0-9.]+/(?!site-packages)')
    tidy = [(stream, library.sub("LIBRARY", own.sub("OWN", text))) for stream, text in lines]
    output = [text for stream, text in tidy if stream == "o"]
    errors = [text for stream, text in tidy if stream != "o"]
    return Outcome(exited.exit_code, exited.signal, output, errors)


async def cold_and_warm(
    harness: EngineHarness, runtime: Runtime, *argv: str, prefix: Prefix | None = None
) -> tuple[Outcome, Outcome]:
    """Return the outcomes of a program that started cold and of the same program that started warm."""
    cold_uid = await start(harness, runtime, *argv, warm=None, prefix=prefix)
    warm_uid = await start(harness, runtime, *argv, warm=runtime.warm(), prefix=prefix)
    assert await start_notice(harness, warm_uid) == WARM
    assert await start_notice(harness, cold_uid) == ""
    return await outcome(harness, cold_uid), await outcome(harness, warm_uid)


def differences(cold: Outcome, warm: Outcome) -> object:
    """Return None for equal outcomes. For programs that print JSON, return only the differing values."""
    if cold == warm:
        return None
    try:
        shown, other = json.loads(cold.output[0]), json.loads(warm.output[0])
        different = {name: (shown[name], other[name]) for name in shown if shown[name] != other[name]}
    except (ValueError, IndexError, KeyError, TypeError):
        return cold, warm
    return different or (cold, warm)


def preloader_pid() -> int:
    """Return the process ID of the only preloader."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task").glob("*/children")
    ids = [int(word) for path in children for word in path.read_text().split()]
    (preloader,) = (pid for pid in ids if Path(f"/proc/{pid}/comm").read_text() == "ts-preloader\n")
    return preloader
