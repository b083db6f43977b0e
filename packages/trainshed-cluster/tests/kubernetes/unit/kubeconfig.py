"""A kubeconfig of a cluster that is nowhere: what its API says is for the test to say."""

import json
from pathlib import Path


def written(directory: Path, **user: str) -> Path:
    """The file. `user`: who asks; by a token if nothing is said."""
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
