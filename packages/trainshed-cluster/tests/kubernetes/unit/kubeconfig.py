"""Writes a kubeconfig for an API server that does not exist. Each test supplies the answers."""

import json
from pathlib import Path


def write(directory: Path, **user: str) -> Path:
    """Write the file and return its path. `user`: the credentials; default: a token."""
    config = directory / "config"
    config.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "http://api.invalid"}}],
                "users": [{"name": "u", "user": user or {"token": "one"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return config
