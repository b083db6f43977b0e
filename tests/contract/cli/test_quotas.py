"""`trainshed quotas`: what is asked of the service, and what is printed."""

import json
from typing import Any

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService

QUOTAS = "/trainshed/v1/quotas"
PLACE = {"project": "p", "region": "us-central1"}


def quota(metric: str = "cpus_n1_e2", **more: Any) -> dict[str, Any]:
    return {"metric": metric, "limit": 20, "used": 12.5, "waiting": 0} | more


def test_set(trainshed: Invoke, service: FakeService) -> None:
    service.on("POST", f"{QUOTAS}:set", {**PLACE, **quota()}, {**PLACE, **quota(limit="unlimited")})
    output = trainshed("quotas", "set", "cpus_n1_e2", "20").stdout
    assert output == "cpus_n1_e2  20 for p in us-central1, 12.5 used\n"
    trainshed("quotas", "set", "cpus_n1_e2", "unlimited")
    bodies = [json.loads(body) for body in service.bodies("POST", f"{QUOTAS}:set")]
    assert [body["limit"] for body in bodies] == [20, "unlimited"]
    assert bodies[0] == {**PLACE, "metric": "cpus_n1_e2", "user": "", "limit": 20}
