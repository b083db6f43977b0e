"""Where replicas' endpoints reach the service for its APIs: Unix sockets in the data directory, which programs do not see.

Who calls is not known by the way in: it takes a token here as anywhere.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from trainshed.buckets.sockets import listen_unix


@dataclass(frozen=True, slots=True)
class ProgramDoors:
    """Listening sockets and their paths, which stay the same from start to start: replicas outlive the service."""

    rest: socket.socket
    grpc: socket.socket
    rest_path: Path
    grpc_path: Path

    def close(self) -> None:
        self.rest.close()
        self.grpc.close()


def open_doors(data: Path) -> ProgramDoors:
    """Raises OSError."""
    rest_path, grpc_path = data / "programs.sock", data / "programs-grpc.sock"
    rest = listen_unix(rest_path)
    try:
        return ProgramDoors(rest, listen_unix(grpc_path), rest_path, grpc_path)
    except OSError:
        rest.close()
        raise
