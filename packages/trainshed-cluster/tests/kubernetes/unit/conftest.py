"""A cluster over an API in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kubernetes.unit import kubeconfig
from trainshed_cluster.kubernetes import client, cluster
from trainshed_cluster.kubernetes.cluster import KubernetesCluster
from trainshed_cluster.kubernetes.settings import parse

Make = Callable[..., KubernetesCluster]
Start = Callable[..., Awaitable[KubernetesCluster]]


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes one on an API, with settings besides those that have to be; a test is done with it within a
    minute."""
    opened: list[KubernetesCluster] = []

    def made(api: Any, **settings: Any) -> KubernetesCluster:
        client_of = partial(client.ApiClient, transport=httpx2.MockTransport(api.answer))
        monkeypatch.setattr(cluster, "ApiClient", client_of)
        config = str(kubeconfig.written(tmp_path))
        own = parse({"image": "i:1", "kubeconfig": config, **settings})
        opened.append(KubernetesCluster(own, "abc", command=["true"], cache="/cache"))
        return opened[-1]

    async with asyncio.timeout(60):
        yield made
        for here in opened:
            await here.close()


@pytest.fixture
def start(make: Make) -> Start:
    """Makes one, and starts it."""

    async def started(api: Any, **settings: Any) -> KubernetesCluster:
        here = make(api, **settings)
        await here.start()
        return here

    return started
