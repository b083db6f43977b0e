"""Programs begun cold and warm: how each began, and what of it can be compared."""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.contract.engines.conftest import House
from tests.contract.engines.warm.runtimes import Runtime
from trainshed.core.launch import Account, WarmStart
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.core.names import JobUid
from trainshed.runtimes.prefix import Prefix

FILE, TEXT = "file", "text"
ENVIRON = (("PYTHONUNBUFFERED", "1"), ("CUDA_VISIBLE_DEVICES", ""), ("MINE", "a $b"))
#: How a program began whose runtime's `framework` was imported ahead.
WARM = "started warm: framework 1.2 imported"


async def start(
    house: House,
    runtime: Runtime,
    *argv: str,
    warm: WarmStart | None,
    prefix: Prefix | None = None,
    environ: Mapping[str, str] | None = None,
    project: str = "one",
) -> JobUid:
    """Start a module with its arguments, `file` with a path, or `text` with a program's text."""
    how = {FILE: (), TEXT: ("-c",)}.get(argv[0], ("-m", argv[0]))
    return await house.run(
        "python3",
        *(*how, *argv[1:]),
        software=runtime.software(prefix or runtime.layer),
        environ=(*ENVIRON, *(environ or {}).items()),
        warm=warm,
        account=Account(project=project),
    )


async def how_it_began(house: House, uid: JobUid) -> str:
    """What users are told of it: "" of a program that did not ask for imports."""
    await house.end(uid)
    return " ".join(event.text for event in house.seen(uid) if isinstance(event, ReplicaNoted))


async def preloaded(house: House, runtime: Runtime, *modules: str, pause: float = 0.25) -> str:
    """Have a preloader made, by a program that begins cold; returns how the first one after it began.
    `pause`: seconds between two that look."""
    text = ""
    for _ in range(400):
        warm = runtime.warm(*modules)
        uid = await start(house, runtime, "none", warm=warm)
        text = await how_it_began(house, uid)
        if "being imported" not in text:
            return text
        await asyncio.sleep(pause)
    raise AssertionError(text)


class Outcome(NamedTuple):
    """All that is left of a program, but for what each has of its own."""

    exit_code: int | None
    signal: int | None
    #: Lines of the two streams.
    output: list[str]
    errors: list[str]


async def outcome(house: House, uid: JobUid) -> Outcome:
    exited = (await house.exit(uid)).exit
    lines = [(str(line["s"]), str(line["m"])) for line in house.log(uid)]
    names = rf"/slots/{uid}/|host-{uid}-|trainshed-[0-9a-z]+-{uid}-| at 0x\w+"
    # What XGBoost and TensorFlow put before what they log, XGBoost's addresses of a stack.
    logged = r"\[\d\d:\d\d:\d\d\]|(?<=^[IWE]0000 00:00:)[0-9. ]+|\[0x\w+\]"
    own = re.compile(f"{names}|{logged}")
    # The standard library's files lie in each environment as links to the same: a module that was imported
    # ahead names its file in the runtime (docs/warm-starts.md).
    library = re.compile(r'File \\*"\S+/(?:layer|base)/lib/python[0-9.]+/(?!site-packages)')
    tidy = [(stream, library.sub("LIBRARY", own.sub("OWN", text))) for stream, text in lines]
    output = [text for stream, text in tidy if stream == "o"]
    errors = [text for stream, text in tidy if stream != "o"]
    return Outcome(exited.exit_code, exited.signal, output, errors)


async def both_ways(
    house: House, runtime: Runtime, *argv: str, prefix: Prefix | None = None
) -> tuple[Outcome, Outcome]:
    """Outcomes of a program that began cold, and of the same that began warm."""
    cold_uid = await start(house, runtime, *argv, warm=None, prefix=prefix)
    warm_uid = await start(house, runtime, *argv, warm=runtime.warm(), prefix=prefix)
    assert await how_it_began(house, warm_uid) == WARM
    assert await how_it_began(house, cold_uid) == ""
    return await outcome(house, cold_uid), await outcome(house, warm_uid)


def differences(cold: Outcome, warm: Outcome) -> object:
    """None if there are none; only what differs, if the programs have shown themselves as JSON."""
    if cold == warm:
        return None
    try:
        shown, other = json.loads(cold.output[0]), json.loads(warm.output[0])
        different = {
            name: (shown[name], other[name]) for name in shown if shown[name] != other[name]
        }
    except (ValueError, IndexError, KeyError, TypeError):
        return cold, warm
    return different or (cold, warm)


def preloader_of() -> int:
    """Process id of the one preloader that there is."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task").glob("*/children")
    ids = [int(word) for path in children for word in path.read_text().split()]
    (preloader,) = (pid for pid in ids if Path(f"/proc/{pid}/comm").read_text() == "ts-preloader\n")
    return preloader
