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

Start = Callable[..., Awaitable[KubernetesCluster]]


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Starts one on an API, with settings besides those that have to be; a test is done with it within a
    minute."""
    opened: list[KubernetesCluster] = []

    async def started(api: Any, **settings: str) -> KubernetesCluster:
        made = partial(client.ApiClient, transport=httpx2.MockTransport(api.answer))
        monkeypatch.setattr(cluster, "ApiClient", made)
        config = str(kubeconfig.written(tmp_path))
        own = parse({"image": "i:1", "kubeconfig": config, **settings})
        here = KubernetesCluster(own, "abc", command=["true"], cache="/cache")
        opened.append(here)
        await here.start()
        return here

    async with asyncio.timeout(60):
        yield started
        for here in opened:
            await here.close()
