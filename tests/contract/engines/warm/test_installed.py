"""A program that starts warm finds the packages that an earlier incarnation of its replica
installed (spec/runtimes#installs)."""

from tests.contract.engines.conftest import PRIMARY, EngineHarness
from tests.contract.engines.warm.runtimes import ToyRuntime
from tests.contract.engines.warm.warm_starts import ENVIRON, prepare_preloader, start_notice
from trainshed.core.launch import Account
from trainshed.core.lifecycle.replica_events import ReplicaNoted

INSTALLS = """
import site
with open(site.getusersitepackages() + "/framework.py", "w") as file:
    file.write("__version__ = 'installed'")
"""


async def test_installed_version_overrides_a_preloaded_module(
    harness: EngineHarness, runtime: ToyRuntime
) -> None:
    await prepare_preloader(harness, runtime)
    fields = {
        "software": runtime.software(runtime.layer),
        "environ": ENVIRON,
        "warm": runtime.warm(),
        "account": Account(project="one"),
    }
    uid = await harness.run("python3", "-c", INSTALLS, **fields)
    assert "started warm" in await start_notice(harness, uid)
    shows = ("python3", "-c", "import framework; print(framework.__version__)")
    await harness.engine.launch([harness.plan(uid, *shows, incarnation=2, **fields)])
    await harness.exit(uid, PRIMARY, 2)
    assert harness.texts(uid) == ["installed"]
    *_, note = [event.text for event in harness.events_of(uid) if isinstance(event, ReplicaNoted)]
    assert "framework would be imported from" in note
