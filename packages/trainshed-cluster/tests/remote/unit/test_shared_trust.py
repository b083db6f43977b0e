"""The authorities that programs on nodes believe, as a file that those see (docs/adr/0083)."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from trainshed.engines.registry import EngineContext
from trainshed_cluster.remote.options import shared_trust


def test_a_file_is_there_with_what_is_trusted_now(tmp_path: Path) -> None:
    source = tmp_path / "roots.pem"
    access = SimpleNamespace(trust=source)
    context = cast(EngineContext, SimpleNamespace(cache=tmp_path, data=tmp_path, access=access))
    assert shared_trust(context) == "", "programs need none"
    for text in ("an authority", "another"):
        source.write_text(text)
        path = Path(shared_trust(context))
        assert path.read_text() == text
        assert path.stat().st_mode & 0o777 == 0o644, "other users' programs read it"
    path.unlink()
    assert shared_trust(context) == str(path) and path.exists()
