"""A kill -9 between a write and its answer: nothing that was acknowledged is lost, nothing is half done, and
the request sent again doubles nothing (spec/invariants#durability, facts/experiments#points).

Each request is killed before some of its steps, spread over all of it and dense where it has been stored and
is not answered yet; with `-m soak`, before every one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.contract.api.house import LOCATION
from tests.contract.api.mortal import Mortal
from tests.contract.api.test_metadata import STORES
from tests.unit.test_specs_pipeline import MODEL

KILLS = 6
"""Of each request; half of them at its last steps."""
Request = tuple[str, str, Any]


class Deed(ABC):
    """A request about something called `key`, and what is to be seen of it."""

    #: HTTP statuses of the request when it was carried out already.
    again: Sequence[int] = (200,)

    @abstractmethod
    def prepare(self, service: Mortal, key: str) -> None:
        """Make what the request needs."""

    @abstractmethod
    def request(self, key: str) -> Request: ...

    @abstractmethod
    def state(self, service: Mortal, key: str) -> Any: ...


class PointsWritten(Deed):
    """Of two series at once, behind points that were acknowledged."""

    def __init__(self, service: Mortal) -> None:
        board = ok(service, "POST", f"{LOCATION}/tensorboards", {"displayName": "b"})
        name = board["response"]["name"]
        self._runs = f"/v1/{name}/experiments/e/runs"
        ok(service, "POST", f"/v1/{name}/experiments?tensorboardExperimentId=e", {})
        self._series: dict[str, list[str]] = {}

    def prepare(self, service: Mortal, key: str) -> None:
        ok(service, "POST", f"{self._runs}?tensorboardRunId={key}", {"displayName": key})
        self._series[key] = [
            ok(
                service,
                "POST",
                f"{self._runs}/{key}/timeSeries",
                {"displayName": title, "valueType": "SCALAR"},
            )["name"].rpartition("/")[2]
            for title in ("loss", "accuracy")
        ]
        ok(service, *self._write(key, range(1, 4)))

    def request(self, key: str) -> Request:
        return self._write(key, range(4, 7))

    def state(self, service: Mortal, key: str) -> Any:
        steps: list[list[int]] = []
        for series in self._series[key]:
            data = ok(service, "GET", f"{self._runs}/{key}/timeSeries/{series}:read")
            steps.append([int(point["step"]) for point in data["timeSeriesData"]["values"]])
        return steps

    def _write(self, key: str, steps: range) -> Request:
        values = [
            {"step": step, "scalar": {"value": step}, "wallTime": "2026-11-21T10:00:00Z"}
            for step in steps
        ]
        data = [
            {"tensorboardTimeSeriesId": series, "valueType": "SCALAR", "values": values}
            for series in self._series[key]
        ]
        return "POST", f"{self._runs}/{key}:write", {"timeSeriesData": data}


class ModelUploaded(Deed):
    again = (409,)

    def prepare(self, service: Mortal, key: str) -> None:
        pass

    def request(self, key: str) -> Request:
        model = {**MODEL, "versionAliases": ["gold"]}
        return "POST", f"{LOCATION}/models:upload", {"model": model, "modelId": key}

    def state(self, service: Mortal, key: str) -> Any:
        answer = service.ask("GET", f"{LOCATION}/models/{key}:listVersions")
        assert answer is not None
        if answer.status != 200:
            return answer.status
        return [sorted(version["versionAliases"]) for version in answer.json["models"]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    with Mortal(tmp_path_factory.mktemp("mortal")) as mortal:
        ok(mortal, "POST", f"{STORES}?metadataStoreId=default", {})
        yield mortal


DEEDS = ("points", "model")


def deed_of(name: str, service: Mortal) -> Deed:
    return PointsWritten(service) if name == "points" else ModelUploaded()


@pytest.mark.parametrize("name", DEEDS)
def test_what_is_killed_before_its_answer_is_done_or_not(service: Mortal, name: str) -> None:
    deed = deed_of(name, service)
    steps, after = measured(service, deed, name)
    spread = [1 + number * steps // (KILLS // 2) for number in range(KILLS // 2)]
    last = range(steps, steps - KILLS // 2, -1)
    assert killed_at(service, deed, name, after, sorted({*spread, *last})) >= KILLS // 2


@pytest.mark.soak
@pytest.mark.parametrize("name", DEEDS)
def test_a_kill_before_any_step(service: Mortal, name: str) -> None:
    deed = deed_of(name, service)
    steps, after = measured(service, deed, f"all-{name}")
    killed_at(service, deed, f"all-{name}", after, range(1, steps + 3))


def measured(service: Mortal, deed: Deed, name: str) -> tuple[int, Any]:
    """How many steps the request has, and what is seen after it, also after a kill."""
    key = f"{name}-whole"
    deed.prepare(service, key)
    answer = service.ask(*deed.request(key), die_at=0)
    assert answer is not None and answer.status == 200, answer
    after = deed.state(service, key)
    service.kill()
    assert deed.state(service, key) == after, "acknowledged, and lost"
    return answer.steps, after


def killed_at(service: Mortal, deed: Deed, name: str, after: Any, steps: Sequence[int]) -> int:
    """Kill the request before each of these steps; how often that was before its answer."""
    killed = 0
    for step in steps:
        key = f"{name}-{step}"
        deed.prepare(service, key)
        before = deed.state(service, key)
        assert before != after
        answer = service.ask(*deed.request(key), die_at=step)
        state = deed.state(service, key)
        killed += answer is None
        assert state == after or (answer is None and state == before), (step, state)
        repeated = service.ask(*deed.request(key))
        assert repeated is not None
        assert repeated.status in (deed.again if state == after else (200,)), (step, repeated)
        assert deed.state(service, key) == after, step
    return killed


def ok(service: Mortal, method: str, path: str, body: Any = None) -> Any:
    answer = service.ask(method, path, body)
    assert answer is not None and answer.status == 200, answer
    return answer.json
