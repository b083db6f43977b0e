"""One service for the whole end-to-end run; tests that kill it start their own. Packages of Node,
installed once."""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.e2e.browsing import CHROMIUM, FORMS, PageMessages, sign_in
from tests.e2e.running import CACHE, SMALL, Service, common_place, running
from tests.e2e.stories import make_pipe

NODE = Path(__file__).parent / "node"

RUNTIME_VERSION = ("--runtime-version=2.11", "--python-version=3.7")
"""Of `ml` jobs on the service that the files share. It runs them in the environment that the other jobs have:
what the real ones hold is gigabytes, and the subject of `./dev test-runtimes`."""

MAPPED = f"""
[[images]]
pattern = "runtimeVersion:2.11"
{SMALL}
"""


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("service") / "data", settings=MAPPED) as started:
        yield started


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def commons() -> Iterator[Path]:
    """A directory for programs and the test, which programs may read; to pipes in it they may write."""
    place = Path(tempfile.mkdtemp(dir=common_place()))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def gate(commons: Path) -> Path:
    """A pipe that a program can wait at: `open(gate).read()`; `gate.write_text("")` lets one that waits go
    on."""
    return make_pipe(commons / "gate")


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """What programs of Node need, installed once for all test runs of a checkout, also by those that go on
    side by side."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: the Node client and a certified issuer are NOT tested")
    locks = [NODE / name for name in ("package.json", "package-lock.json")]
    place = CACHE / f"node-{hashlib.sha256(locks[1].read_bytes()).hexdigest()[:12]}"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "node_modules/.package-lock.json").exists():
            for file in locks:
                shutil.copy(file, place)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--prefix", str(place)]
            try:
                subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
            except subprocess.SubprocessError as failure:
                cause = getattr(failure, "stderr", "")
                pytest.skip(
                    f"npm installs nothing, so what it brings is NOT tested: {failure} {cause}"
                )
    return place / "node_modules"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Of one file: while it is there, nothing else in this process can have an event loop. It
    draws by itself, not by a GPU that the processor plays. `shed.example` is a name on the network."""
    names = "--host-resolver-rules=MAP shed.example 127.0.0.1"
    arguments = ["--no-sandbox", "--disable-gpu", names]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page_messages() -> Iterator[PageMessages]:
    """What browsers complain about, which is to be nothing."""
    noted = PageMessages()
    yield noted
    assert noted.texts == []


@pytest.fixture
def enter(
    chromium: Browser, service: Service, page_messages: PageMessages
) -> Iterator[Callable[..., Page]]:
    """A page of somebody who has followed the link of `trainshed console`."""
    contexts: list[BrowserContext] = []

    def entered(form: str = "light") -> Page:
        context = chromium.new_context(**FORMS[form], reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page_messages.listen(page)
        sign_in(page, service)
        return page

    yield entered
    for context in contexts:
        context.close()
