"""How programs end and what is recorded of it (spec/failures#user-code)."""

from tests.contract.engines.conftest import House
from trainshed.core.launch import Software
from trainshed.core.lifecycle.replica_events import ReplicaLost


async def test_a_command_that_is_not_there_ends_like_in_a_shell(house: House) -> None:
    uid = await house.run("no-such-command", environ=(("PATH", "/nowhere"),))
    end = await house.exit(uid)
    assert end.exit.exit_code == 127
    text = str(house.texts(uid)[-1])
    assert "no-such-command" in text
    assert "/nowhere" in text
    uid = await house.run("/no/such/file")
    assert (await house.exit(uid)).exit.exit_code == 127
    text = str(house.texts(uid)[-1])
    assert text.startswith("/no/such/file: ")
    assert "looked in" not in text
    uid = await house.run("", "argument")
    assert (await house.exit(uid)).exit.exit_code == 127
    assert str(house.texts(uid)[-1]).startswith("'': command not found")
    uid = await house.run("/etc/passwd")
    assert (await house.exit(uid)).exit.exit_code == 126


async def test_a_command_may_be_as_long_as_the_system_takes_it(house: House) -> None:
    """Its order reaches main processes in pieces (spec/invariants#shims)."""
    for size in (40_000, 80_000, 130_000):
        uid = await house.run("sh", "-c", "echo $#", "sh", "x" * size, "y" * size)
        assert (await house.exit(uid)).exit.exit_code == 0
        assert house.texts(uid)[-1] == "2"


async def test_a_replica_that_the_service_cannot_start_is_its_own_failure(house: House) -> None:
    """spec/failures#service-failures: the service itself failed; also when it is asked again after a
    restart."""
    # Levels with a view of their own need the one, the others copy the other.
    uid = await house.run(
        "true", buckets=(("odd", "/dev/null/here"),), software=Software(template="/nowhere/here")
    )
    end = await house.end(uid)
    assert isinstance(end, ReplicaLost) and end.by_service
    assert "/dev/null/here" in end.cause or "/nowhere/here" in end.cause
    await house.restart()
    assert await house.end(uid) == end
