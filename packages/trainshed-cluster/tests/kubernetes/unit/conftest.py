"""Fixtures: a KubernetesCluster over an API in memory."""

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
    """Return a function that creates a cluster over an API. Its keywords replace the minimal settings. A test
    has one minute."""
    opened: list[KubernetesCluster] = []

    def create(api: Any, **settings: Any) -> KubernetesCluster:
        client_of = partial(client.ApiClient, transport=httpx2.MockTransport(api.answer))
        monkeypatch.setattr(cluster, "ApiClient", client_of)
        config = str(kubeconfig.write(tmp_path))
        own = parse({"image": "i:1", "kubeconfig": config, **settings})
        opened.append(KubernetesCluster(own, "abc", command=["true"], cache="/cache"))
        return opened[-1]

    async with asyncio.timeout(60):
        yield create
        for here in opened:
            await here.close()


@pytest.fixture
def start(make: Make) -> Start:
    """Return a function that creates a cluster and starts it."""

    async def create_and_start(api: Any, **settings: Any) -> KubernetesCluster:
        here = make(api, **settings)
        await here.start()
        return here

    return create_and_start
