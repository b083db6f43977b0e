"""How a replica was started, over a real store and real files (spec/program#launches)."""

import json

from tests.contract.api.house import LOCATION, House
from tests.unit.specs_requests import custom_job, pool
from trainshed.core.lifecycle.events import JobAdmitted


async def test_a_launch_says_what_ran(house: House) -> None:
    made = await house.call("POST", f"{LOCATION}/customJobs", custom_job(pool(), pool()))
    uid = made.json["name"].rpartition("/")[2]
    path = f"/trainshed/v1/jobs/{uid}/launch"
    before = await house.result("GET", path)
    assert (before["incarnation"], before["attempt"], before["command"]) == (0, 0, [])
    assert before["machine"]["type"] == "n1-standard-4"
    assert before["runtime"]["family"]
    await house.happen(made.json["name"], JobAdmitted(()))
    directory = house.log_root / uid / "1" / "workerpool1-0"
    directory.mkdir(parents=True)
    cluster = {"cluster": {"workerpool0": ["a:2222"]}, "task": {"index": 0}, "job": {"much": 1}}
    entry = {
        "incarnation": 1,
        "at": 10**18,
        "argv": ["python3", "task.py"],
        "names": ["CLUSTER_SPEC", "RANK"],
        "values": {"CLUSTER_SPEC": json.dumps(cluster), "RANK": "1"},
        "hostname": "h",
        "level": "user",
        "memory": 5,
    }
    (directory / "launches.jsonl").write_text(json.dumps(entry) + "\n")
    launch = await house.result("GET", f"{path}?replica=worker+0")
    assert (launch["task"], launch["incarnation"]) == ("workerpool1-0", 1)
    assert launch["command"] == ["python3", "task.py"]
    assert launch["clusterSpec"] == {"cluster": cluster["cluster"], "task": cluster["task"]}
    assert launch["values"] == {"RANK": "1"}
    assert launch["variables"] == ["CLUSTER_SPEC", "RANK"]
    assert (launch["machine"]["memoryLimitBytes"], launch["user"]) == (5, None)
    assert (await house.result("GET", path))["incarnation"] == 0, "the primary's"
    assert (await house.call("GET", f"{path}?replica=ps-1")).status == 400
    assert (await house.call("GET", f"{path}?attempt=2")).status == 400
    assert (await house.call("GET", "/trainshed/v1/jobs/1/launch")).status == 404
