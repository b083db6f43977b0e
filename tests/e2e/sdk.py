"""The Vertex SDK, unmodified, in the tests' own process, pointed at a service over REST
(spec/clients#recipes)."""

import contextlib
import importlib
from collections.abc import Generator
from typing import Any

import pytest

from tests.e2e.running import PROJECT, REGION, Service
from trainshed.buckets.callers import address_with_key


@contextlib.contextmanager
def pointed_sdk(service: Service, bucket: str) -> Generator[Any]:
    """`google.cloud.aiplatform`, which stages in that bucket."""
    storage = address_with_key(str(service.extra["storage"]), service.token)
    with pytest.MonkeyPatch.context() as patch:
        # Read by google-cloud-storage, which the SDK uploads scripts with.
        patch.setenv("STORAGE_EMULATOR_HOST", storage)
        patch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        patch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        module: Any = importlib.import_module("google.cloud.aiplatform")
        credentials: Any = importlib.import_module("google.oauth2.credentials")
        module.init(
            project=PROJECT,
            location=REGION,
            api_endpoint=service.rest,
            api_transport="rest",
            credentials=credentials.Credentials(service.token),
            staging_bucket=f"gs://{bucket}",
        )
        yield module
