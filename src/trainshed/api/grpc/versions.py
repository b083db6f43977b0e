"""`v1beta1` of the Vertex services over gRPC: which method serves a path, and which version it says."""

from trainshed.api.versions import BETA, V1, Version


def version_of(path: str) -> Version:
    """The version that a gRPC path (`/package.Service/Method`) names."""
    if path.startswith(f"/{BETA}"):
        return Version.V1BETA1
    return Version.V1 if path.startswith(f"/{V1}") else Version.UNSAID


def aliased(path: str) -> str:
    """The path of the method that serves `path`."""
    is_beta = version_of(path) is Version.V1BETA1
    return f"/{V1}{path[len(BETA) + 1 :]}" if is_beta else path
