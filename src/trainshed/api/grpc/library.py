"""gRPC's own packages, which ship no types; and how they are kept quiet."""

import importlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_VERBOSITY = "GRPC_VERBOSITY"


@contextmanager
def _quietly() -> Generator[None]:
    """When it is loaded, gRPC's core reads how much it is to say; by default it is a line on stderr for every stray
    connection. Whoever sets the variable himself is obeyed; programs that are started later do
    not inherit ours."""
    given = os.environ.get(_VERBOSITY)
    os.environ[_VERBOSITY] = given or "NONE"
    try:
        yield
    finally:
        if given is None:
            del os.environ[_VERBOSITY]


with _quietly():
    grpc: Any = importlib.import_module("grpc")
    aio: Any = importlib.import_module("grpc.aio")
    reflection: Any = importlib.import_module("grpc_reflection.v1alpha.reflection")
    health: Any = importlib.import_module("grpc_health.v1.health")
    health_messages: Any = importlib.import_module("grpc_health.v1.health_pb2")
    health_service: Any = importlib.import_module("grpc_health.v1.health_pb2_grpc")
