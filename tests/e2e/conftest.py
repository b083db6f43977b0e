"""One service for the whole end-to-end run. Tests that kill it start their own. Node packages are installed
once.
"""

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
from tests.e2e.job_history import make_pipe
from tests.e2e.running import CACHE, SMALL, Service, common_place, running

NODE = Path(__file__).parent / "node"

RUNTIME_VERSION = ("--runtime-version=2.11", "--python-version=3.7")
"""Settings for `ml` jobs on the shared service. They use the environment of the other jobs, because the real
ones have gigabytes and belong to `./dev test-runtimes`.
"""

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
    """A directory shared by programs and the test: programs may read it, and write to pipes in it."""
    place = Path(tempfile.mkdtemp(dir=common_place()))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def gate(commons: Path) -> Path:
    """Create a pipe at which a program waits: `open(gate).read()`. `gate.write_text("")` releases it."""
    return make_pipe(commons / "gate")


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Node packages of programs, installed once for all test runs of a checkout, including parallel ones."""
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
                pytest.skip(f"npm installs nothing, so what it brings is NOT tested: {failure} {cause}")
    return place / "node_modules"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for one file. While it exists, this process cannot run another event loop. It renders in
    software without an emulated GPU. `shed.example` resolves to an address of the network.
    """
    names = "--host-resolver-rules=MAP shed.example 127.0.0.1"
    arguments = ["--no-sandbox", "--disable-gpu", names]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page_messages() -> Iterator[PageMessages]:
    """Complaints of browsers, which must be empty."""
    noted = PageMessages()
    yield noted
    assert noted.texts == []


@pytest.fixture
def enter(chromium: Browser, service: Service, page_messages: PageMessages) -> Iterator[Callable[..., Page]]:
    """A page whose user has followed the link of `trainshed console`."""
    contexts: list[BrowserContext] = []

    def open_page(form: str = "light") -> Page:
        context = chromium.new_context(**FORMS[form], reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page_messages.listen(page)
        sign_in(page, service)
        return page

    yield open_page
    for context in contexts:
        context.close()
