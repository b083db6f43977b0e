"""What image references stood for when they were looked up last. Kept, so that an unpacked image is found without a tool."""

import hashlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Known:
    """`id`: of the image. `fingerprint`: of the tool's images then (`ImageTool.fingerprint`)."""

    reference: str
    id: str
    fingerprint: str


class KnownImages:
    """One small file for each reference below `root`. Safe for several threads and processes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, reference: str) -> Known | None:
        """Reads one small file."""
        try:
            return Known(**json.loads(self._place(reference).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def keep(self, known: Known) -> None:
        """Raises OSError."""
        self._root.mkdir(parents=True, exist_ok=True)
        place = self._place(known.reference)
        draft = place.with_name(f".{secrets.token_hex(8)}")
        draft.write_text(json.dumps(asdict(known)))
        os.replace(draft, place)  # noqa: PTH105 -- beside its place, whatever that is

    def _place(self, reference: str) -> Path:
        return self._root / hashlib.sha256(reference.encode()).hexdigest()[:32]
