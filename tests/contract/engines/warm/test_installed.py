"""A program that starts warm finds the packages that an earlier incarnation of its replica
installed (spec/runtimes#installs)."""

from tests.contract.engines.conftest import PRIMARY, House
from tests.contract.engines.warm.running import ENVIRON, prepare_preloader, start_notice
from tests.contract.engines.warm.runtimes import ToyRuntime
from trainshed.core.launch import Account
from trainshed.core.lifecycle.replica_events import ReplicaNoted

INSTALLS = """
import site
with open(site.getusersitepackages() + "/framework.py", "w") as file:
    file.write("__version__ = 'installed'")
"""


async def test_installed_version_overrides_a_preloaded_module(
    house: House, runtime: ToyRuntime
) -> None:
    await prepare_preloader(house, runtime)
    fields = {
        "software": runtime.software(runtime.layer),
        "environ": ENVIRON,
        "warm": runtime.warm(),
        "account": Account(project="one"),
    }
    uid = await house.run("python3", "-c", INSTALLS, **fields)
    assert "started warm" in await start_notice(house, uid)
    shows = ("python3", "-c", "import framework; print(framework.__version__)")
    await house.engine.launch([house.plan(uid, *shows, incarnation=2, **fields)])
    await house.exit(uid, PRIMARY, 2)
    assert house.texts(uid) == ["installed"]
    *_, note = [event.text for event in house.seen(uid) if isinstance(event, ReplicaNoted)]
    assert "framework would be imported from" in note
