"""Programs that begin in a fork of a preloader (spec/program#warm-starts): what is seen of them is what is
seen of a program in an interpreter of its own."""

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.contract.engines.conftest import House, Run
from tests.contract.engines.test_autopsies import HOUR, look, weighed
from tests.contract.engines.test_stock import children, guardians, until
from tests.contract.engines.test_terminals import shown
from tests.contract.engines.warm_programs import (
    FILES,
    FRAMEWORK,
    PACKED,
    PROGRAMS,
    RUN,
    SHORT,
    SHORT_FILES,
    TALKATIVE,
)
from tests.soaks import SOAKS
from trainshed.cli.run.program import pack
from trainshed.core import warm_start
from trainshed.core.launch import Account, Software, WarmStart
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.core.names import JobUid
from trainshed.engines.local.autopsies import Keeping
from trainshed.engines.local.preloaders import Preloaders
from trainshed.replica import protocol
from trainshed.replica.preloader import becoming
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.prefix import Prefix, derive_prefix, make_prefix, write_template
from trainshed.runtimes.sheet import Minor

FILE, TEXT = "file", "text"
ENVIRON = (("PYTHONUNBUFFERED", "1"), ("CUDA_VISIBLE_DEVICES", ""), ("MINE", "a $b"))


OWN = sys.version_info.major, sys.version_info.minor
MINORS = [(3, minor) for minor in range(7, 15)] if SOAKS else [OWN]
"""Versions of Python that runtimes have, those of them that the machine has."""


class Runtime:
    """A runtime with one framework, and a layer with the programs."""

    def __init__(self, place: Path, minor: Minor) -> None:
        interpreter = Interpreters(place / "interpreters.json").get(minor)
        if interpreter is None:
            pytest.skip(f"there is no Python {minor[0]}.{minor[1]}")
        self.minor = minor
        self.base = make_prefix(place / "base", interpreter)
        (self.base.site / "framework.py").write_text(FRAMEWORK)
        (self.base.site / "threaded.py").write_text(
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        )
        (self.base.site / "talkative.py").write_text(TALKATIVE)
        (self.base.site / "flooding.py").write_text("print('x' * 66000)\n")
        (self.base.site / "open_file.py").write_text("FILE = open('/etc/hostname')\n")
        (self.base.site / "dies.py").write_text("import os\nos._exit(3)\n")
        write_template(self.base, self.base)
        self.layer = derive_prefix(place / "layer", self.base, interpreter)
        for name, text in PROGRAMS.items():
            path = self.layer.site / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        write_template(self.layer, self.layer)
        self.overriding = derive_prefix(place / "overriding", self.base, interpreter)
        (self.overriding.site / "framework.py").write_text("__version__ = '2.0'\n")
        (self.overriding.site / "which.py").write_text(
            "import framework; print(framework.__version__)\n"
        )
        write_template(self.overriding, self.overriding)
        self.places = interpreter.places
        self._place = place
        self._interpreter = interpreter

    def packed(self, files: Mapping[str, str], entry: str) -> tuple[Prefix, str]:
        """A layer with what `trainshed run` makes of these files, and the module that starts it."""
        source = self._place / f"source-{entry}"
        source.mkdir()
        for name, text in files.items():
            (source / name).write_text(text)
        program = pack(source / entry, "", [])
        layer = derive_prefix(self._place / f"layer-{entry}", self.base, self._interpreter)
        with zipfile.ZipFile(io.BytesIO(program.packages[0].content)) as wheel:
            wheel.extractall(layer.site)
        write_template(layer, layer)
        return layer, program.module

    def software(self, prefix: Prefix) -> Software:
        shown = (str(prefix.root), str(self.base.root), *self.places)
        return Software(template=str(prefix.template), read_only=shown)

    def warm(self, *modules: str) -> WarmStart:
        return WarmStart(str(self.base.template), modules or ("framework",))


@pytest.fixture(scope="module", params=MINORS, ids=lambda minor: "{}.{}".format(*minor))
def runtime(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Runtime:
    return Runtime(tmp_path_factory.mktemp("warm"), request.param)


async def start(
    house: House,
    runtime: Runtime,
    *argv: str,
    warm: WarmStart | None,
    prefix: Prefix | None = None,
    environ: Mapping[str, str] | None = None,
    project: str = "one",
) -> JobUid:
    """A module with its arguments, `file` with a path, or `text` with a program's text."""
    how = {FILE: (), TEXT: ("-c",)}.get(argv[0], ("-m", argv[0]))
    return await house.run(
        "python3",
        *(*how, *argv[1:]),
        software=runtime.software(prefix or runtime.layer),
        environ=(*ENVIRON, *(environ or {}).items()),
        warm=warm,
        account=Account(project=project),
    )


async def told(house: House, uid: JobUid) -> str:
    """How it began."""
    await house.end(uid)
    return " ".join(event.text for event in house.seen(uid) if isinstance(event, ReplicaNoted))


async def preloaded(
    house: House,
    runtime: Runtime,
    *modules: str,
    project: str = "one",
    environ: Mapping[str, str] | None = None,
    pause: float = 0.05,
) -> str:
    """Have a preloader made, by a program that begins cold; returns how the first one after it began.
    `pause`: seconds between two that look."""
    text = ""
    for _ in range(400):
        warm = runtime.warm(*modules)
        uid = await start(house, runtime, "none", warm=warm, project=project, environ=environ)
        text = await told(house, uid)
        if "being imported" not in text:
            return text
        await asyncio.sleep(pause)
    raise AssertionError(text)


def namespaced(test: Any) -> Any:
    """At level session nothing begins warm."""

    async def body(house: House) -> None:
        await house.restart(warm_idle=60.0)
        if house.engine.host.level != protocol.LEVEL_SESSION:
            await test(house)

    return body


def differences(expected: tuple[Any, ...], found: tuple[Any, ...]) -> object:
    """Told apart by what a program has shown of itself, if it has."""
    try:
        shown, other = json.loads(expected[2][0]), json.loads(found[2][0])
        return {name: (shown[name], other[name]) for name in shown if shown[name] != other[name]}
    except (ValueError, IndexError, TypeError):
        return expected, found


async def outcome(house: House, uid: JobUid) -> tuple[Any, ...]:
    """All that is left of a program, but for what each has of its own."""
    exited = (await house.exit(uid)).exit
    lines = [(str(line["s"]), str(line["m"])) for line in house.log(uid)]
    out = [text for stream, text in lines if stream == "o"]
    err = [text for stream, text in lines if stream != "o"]
    names = rf"/slots/{uid}/|host-{uid}-|trainshed-[0-9a-z]+-{uid}-| at 0x\w+"
    # What XGBoost and TensorFlow put before what they log, XGBoost's addresses of a stack.
    logged = r"\[\d\d:\d\d:\d\d\]|(?<=^[IWE]0000 00:00:)[0-9. ]+|\[0x\w+\]"
    own = re.compile(f"{names}|{logged}")
    # The standard library's files lie in each environment as links to the same: a module that was imported
    # ahead names its file in the runtime (docs/warm-starts.md).
    library = re.compile(r'File \\*"\S+/(?:layer|base)/lib/python[0-9.]+/(?!site-packages)')
    tidy = [[library.sub("LIBRARY", own.sub("OWN", text)) for text in each] for each in (out, err)]
    return exited.exit_code, exited.signal, *tidy


def test_a_warm_program_is_seen_as_a_cold_one_is(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        assert await preloaded(house, runtime) == "started warm: framework 1.2 imported"
        different: dict[str, object] = {}
        for module, arguments in RUN.items() if SOAKS else SHORT.items():
            cold = await start(house, runtime, module, *arguments, warm=None)
            warm = await start(house, runtime, module, *arguments, warm=runtime.warm())
            assert await told(house, warm) == "started warm: framework 1.2 imported"
            assert await told(house, cold) == ""
            expected, found = await outcome(house, cold), await outcome(house, warm)
            if expected != found:
                different[module] = differences(expected, found)
        assert not different, json.dumps(different)

    house(test)


def test_a_file_that_begins_warm_is_seen_as_a_cold_one_is(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        different: dict[str, object] = {}
        for name in FILES if SOAKS else SHORT_FILES:
            path = str(runtime.layer.site / f"{name}.py")
            cold = await start(house, runtime, FILE, path, "a b", warm=None)
            warm = await start(house, runtime, FILE, path, "a b", warm=runtime.warm())
            assert await told(house, warm) == "started warm: framework 1.2 imported"
            expected, found = await outcome(house, cold), await outcome(house, warm)
            if expected != found:
                different[name] = differences(expected, found)
        assert not different, json.dumps(different)

    house(test)


TEXTS = {
    "look": PROGRAMS["look"],
    "fails": "# -*- coding: latin-1 -*-\ndef deep(): raise ValueError('\u00e9')\ndeep()",
    "wrong": "print('not shown')\nif True print()",
    "exits": "import atexit, sys; atexit.register(print, 'last'); sys.exit(5)",
    "finalized": "class A:\n def __del__(self): print('gone')\na = A()",
    "pickles": "import multiprocessing as m\nprint(m.get_context('fork').Pool(2).map(abs, [-1, 2]))",
    "empty": "",
}


def test_a_text_that_begins_warm_is_seen_as_a_cold_one_is(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        different: dict[str, object] = {}
        for name, text in TEXTS.items():
            cold = await start(house, runtime, TEXT, text, "a b", warm=None)
            warm = await start(house, runtime, TEXT, text, "a b", warm=runtime.warm())
            begun = "warm: framework 1.2 imported"
            if runtime.minor >= (3, 13):
                begun = "cold: this version of Python runs what -c is given in a way of its own"
            assert await told(house, warm) == f"started {begun}"
            expected, found = await outcome(house, cold), await outcome(house, warm)
            if expected != found:
                different[name] = differences(expected, found)
        assert not different, json.dumps(different)

    house(test)


async def is_forked(house: House, runtime: Runtime, **environ: str) -> bool:
    """Whether a program that asks for nothing begins in a fork, and is the third process; the second is one
    of its own."""
    path = str(runtime.layer.site / "numbered.py")
    ready = WarmStart(str(runtime.base.template))
    uid = await start(house, runtime, FILE, path, warm=ready, environ=environ)
    assert await told(house, uid) == ""
    return house.texts(uid) == ["3"]


async def until_forked(house: House, runtime: Runtime) -> None:
    """There is an interpreter from now on in whose forks such programs begin."""
    for _ in range(200):
        if await is_forked(house, runtime):
            return
    raise AssertionError("no program was forked")


def test_a_program_that_asks_for_nothing_begins_in_an_interpreter_that_is_up_already(
    house: Run, runtime: Runtime
) -> None:
    @namespaced
    async def test(house: House) -> None:
        ready = WarmStart(str(runtime.base.template))
        assert not await is_forked(house, runtime)
        await until_forked(house, runtime)
        # What only frameworks read is nothing to it.
        assert await is_forked(house, runtime, OMP_NUM_THREADS="as many", CUDA_VISIBLE_DEVICES="0")
        assert not await is_forked(house, runtime, PYTHONOPTIMIZE="1")
        # One that hangs costs the programs that meet it a second, but for those that a fork waits for, and is
        # replaced.
        stopped = preloader_of(house)
        os.kill(stopped, signal.SIGSTOP)
        while await is_forked(house, runtime):
            pass
        await until_forked(house, runtime)
        assert preloader_of(house) != stopped
        cold = await start(house, runtime, "look", "a b", warm=None)
        warm = await start(house, runtime, "look", "a b", warm=ready)
        expected, found = await outcome(house, cold), await outcome(house, warm)
        assert found == expected, differences(expected, found)

    house(test)


def test_nothing_is_imported_in_a_program_that_asks_for_nothing(
    house: Run, runtime: Runtime
) -> None:
    @namespaced
    async def test(house: House) -> None:
        ready = WarmStart(str(runtime.base.template))
        await until_forked(house, runtime)
        different: dict[str, object] = {}
        for argv in (
            ("bare",),
            (FILE, str(runtime.layer.site / "bare.py")),
            (FILE, str(runtime.layer.site / "beside" / "first.py")),
            (TEXT, PROGRAMS["bare"]),
        ):
            cold = await start(house, runtime, *argv, warm=None)
            warm = await start(house, runtime, *argv, warm=ready)
            expected, found = await outcome(house, cold), await outcome(house, warm)
            if expected != found:
                different[argv[-1]] = differences(expected, found)
        assert not different, json.dumps(different)

    house(test)


def waiting_forks(house: House) -> int:
    """How many wait with idle shims."""
    found = 0
    for shim in children(house.zygote()):
        with contextlib.suppress(OSError):
            for guardian in guardians(shim):
                names = [Path(f"/proc/{child}/comm").read_text() for child in children(guardian)]
                found += f"{becoming.WAITING}\n" in names
    return found


def test_forks_wait_for_programs_with_idle_shims(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        assert await preloaded(house, runtime) == "started warm: framework 1.2 imported"
        await until(lambda: waiting_forks(house) >= 2)
        # One that waits needs nothing of its preloader any more.
        stopped = preloader_of(house)
        os.kill(stopped, signal.SIGSTOP)
        uid = await start(house, runtime, "numbered", warm=runtime.warm())
        assert await told(house, uid) == "started warm: framework 1.2 imported"
        assert house.texts(uid) == ["3"]
        os.kill(stopped, signal.SIGCONT)

    house(test)


def test_of_a_fork_that_waited_in_vain_nothing_is_left(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        for _ in range(_MOST_IDLE):
            await preloaded(house, runtime)
            await until(lambda: waiting_forks(house) >= 1)
            uid = await start(house, runtime, "alone", warm=None)
            await house.end(uid)
            assert house.texts(uid) == ["True"]

    house(test)


def test_forks_wait_though_a_program_came_between_that_is_none(
    house: Run, runtime: Runtime
) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        await until(lambda: waiting_forks(house) >= 1)
        uid = await start(house, runtime, "alone", warm=None)
        await house.end(uid)
        await until(lambda: waiting_forks(house) == len(children(house.zygote())) >= 6)

    house(test)


_MOST_IDLE = 8
"""Idle shims, without forks some of them."""


def test_of_programs_that_begin_at_once_no_more_are_forked_than_there_are_processors(
    runtime: Runtime, tmp_path: Path
) -> None:
    """A fork that does not wait already takes a processor as long as a start, and waits for more
    processes."""

    async def test() -> None:
        preloaders = Preloaders(tmp_path, 60.0)
        template = str(runtime.base.template)

        def is_forked() -> bool:
            begins = preloaders.beginning(
                WarmStart(template), "one", ("python3", "x.py"), template, warm_start.ENVIRONMENT
            )
            assert not begins.cold_because
            return bool(begins.preloader) and not begins.only_waiting

        for _ in range(400):
            if is_forked():
                break
            await asyncio.sleep(0.05)
        others = (os.cpu_count() or 1) - 1
        assert [is_forked() for _ in range(others + 1)] == [True] * others + [False]
        await preloaders.close()

    asyncio.run(test())


def test_what_trainshed_run_packs_begins_warm(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        layer, module = runtime.packed(PACKED, "task.py")
        cold = await start(house, runtime, module, "a b", warm=None, prefix=layer)
        warm = await start(house, runtime, module, "a b", warm=runtime.warm(), prefix=layer)
        assert await told(house, warm) == "started warm: framework 1.2 imported"
        expected, found = await outcome(house, cold), await outcome(house, warm)
        assert "ValueError: beside" in expected[3], expected
        assert found == expected, differences(expected, found)

        layer, module = runtime.packed({"go.sh": "echo $0\n"}, "go.sh")
        uid = await start(house, runtime, module, warm=runtime.warm(), prefix=layer)
        assert await told(house, uid) == "started cold: it is a shell script"
        assert house.texts(uid) == ["go.sh"]

        layer, module = runtime.packed({"own.py": "import platform", "platform.py": ""}, "own.py")
        uid = await start(house, runtime, module, warm=runtime.warm(), prefix=layer)
        assert "platform would be imported from" in await told(house, uid)

    house(test)


def test_what_was_random_is_random_in_each_program(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        drawn: list[tuple[float, float, int, str]] = []
        for _ in range(2):
            uid = await start(house, runtime, "drawn", warm=runtime.warm())
            await house.end(uid)
            drawn.append(tuple(json.loads(str(house.texts(uid)[0]))))
        (first, frozen, seed, key), (second, same, same_seed, other_key) = drawn
        assert first != second
        assert key != other_key
        # Told in docs/warm-starts.md: what an import has kept is shared, the seed of hashes as well.
        assert frozen == same
        assert seed == same_seed

    house(test)


@pytest.mark.parametrize(
    ("modules", "why"),
    [
        (("threaded",), "their import starts 1 threads that a fork would lose"),
        (("flooding",), "their import prints more than 64 KiB"),
        (("open_file",), "their import keeps files open that programs would share (/etc/hostname)"),
        (("absent",), "importing absent failed (ModuleNotFoundError: No module named 'absent')"),
        (("dies",), "the process that imported its frameworks ended with 3"),
    ],
    ids=["threads", "flood", "file", "absent", "dies"],
)
def test_what_cannot_be_forked_begins_cold_and_says_why(
    house: Run, runtime: Runtime, modules: tuple[str, ...], why: str
) -> None:
    @namespaced
    async def test(house: House) -> None:
        assert (await preloaded(house, runtime, *modules)).startswith(f"started cold: {why}")

    house(test)


def test_what_an_import_prints_is_printed_by_each_program(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        assert (await preloaded(house, runtime, "talkative")).startswith("started warm")
        cold = await start(house, runtime, "talks", warm=None)
        warm = await start(house, runtime, "talks", warm=runtime.warm("talkative"))
        assert (await told(house, warm)).startswith("started warm")
        expected = await outcome(house, cold)
        assert expected == (0, None, ["welcome", "by the C library", "main"], ["take care"]), (
            expected
        )
        assert await outcome(house, warm) == expected

    house(test)


def test_another_version_of_a_framework_in_the_jobs_packages_is_the_one_that_runs(
    house: Run, runtime: Runtime
) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        uid = await start(house, runtime, "which", warm=runtime.warm(), prefix=runtime.overriding)
        place = runtime.overriding.site
        why = f"framework would be imported from {place}, not from the runtime"
        assert await told(house, uid) == f"started cold: {why}"
        assert house.texts(uid) == ["2.0"]

    house(test)


def test_variables_that_imports_read_begin_cold(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        variables = {"OMP_NUM_THREADS": "as many", "LD_PRELOAD": "", "LD_BIND_NOW": "1"}
        uid = await start(house, runtime, "none", warm=runtime.warm(), environ=variables)
        why = "LD_BIND_NOW, OMP_NUM_THREADS: an import may read it, and was made without"
        assert await told(house, uid) == f"started cold: {why}"

    house(test)


def test_each_number_of_threads_has_a_preloader_and_three_are_kept(
    house: Run, runtime: Runtime
) -> None:
    @namespaced
    async def test(house: House) -> None:
        warm = "started warm: framework 1.2 imported"
        assert await preloaded(house, runtime) == warm
        fixed = {"PYTHONHASHSEED": "7"}
        hashes: list[list[object]] = []
        for _ in range(2):
            assert await preloaded(house, runtime, environ=fixed) == warm
            for asked in (None, runtime.warm()):
                uid = await start(house, runtime, "hashed", warm=asked, environ=fixed)
                await house.end(uid)
                hashes.append(house.texts(uid))
        assert hashes[0][0] == "7" and all(each == hashes[0] for each in hashes), hashes
        assert await preloaded(house, runtime, environ={"OMP_NUM_THREADS": "1"}) == warm
        two = {"OMP_NUM_THREADS": "2"}
        uid = await start(house, runtime, "none", warm=runtime.warm(), environ=two)
        named = "OMP_NUM_THREADS, PYTHONHASHSEED"
        why = f"its frameworks are kept imported with 3 other values of {named} already"
        assert await told(house, uid) == f"started cold: {why}"

    house(test)


def test_projects_have_preloaders_of_their_own(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        uid = await start(house, runtime, "none", warm=runtime.warm(), project="two")
        assert "being imported for the programs that follow" in await told(house, uid)

    house(test)


def preloader_of(house: House) -> int:
    """Process id of the one that there is."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task").glob("*/children")
    ids = [int(word) for path in children for word in path.read_text().split()]
    (found,) = (pid for pid in ids if Path(f"/proc/{pid}/comm").read_text() == "ts-preloader\n")
    return found


def test_a_preloader_that_is_killed_costs_no_program(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        runs = await start(house, runtime, "late", warm=runtime.warm())
        stopped = preloader_of(house)
        os.kill(stopped, signal.SIGSTOP)
        # More than forks wait for.
        several = range(_MOST_IDLE + 1)
        asked = [await start(house, runtime, "coded", warm=runtime.warm()) for _ in several]
        os.kill(stopped, signal.SIGKILL)
        assert (await house.exit(runs)).exit.exit_code == 0
        assert [(await house.exit(uid)).exit.exit_code for uid in asked] == [3] * len(asked)
        assert "started cold: " in " ".join([await told(house, uid) for uid in asked])
        assert await preloaded(house, runtime) == "started warm: framework 1.2 imported"

    house(test)


def test_a_program_that_began_warm_lives_on_without_the_service(
    house: Run, runtime: Runtime
) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        uid = await start(house, runtime, "late", warm=runtime.warm())
        await house.started(uid)
        await house.restart()
        assert (await house.exit(uid)).exit.exit_code == 0

    house(test)


def test_what_a_program_that_began_warm_left_can_be_looked_at(house: Run, runtime: Runtime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await house.restart(warm_idle=60.0, keeping=Keeping(HOUR, 1 << 30))
        await preloaded(house, runtime)
        uid = await start(house, runtime, "coded", warm=runtime.warm())
        assert await told(house, uid) == "started warm: framework 1.2 imported"
        await house.engine.release(uid, 1)
        house.forget(uid)
        await weighed(house, uid)
        assert await shown(await look(house, uid), b"echo $MINE") == "a $b\n"

    house(test)
