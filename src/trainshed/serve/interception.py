"""The files by which replicas' endpoints stand in for Google's hosts: a certificate for their names, and for programs the
file of whom to trust then.

TensorFlow's gs://, the Vertex SDK and Google's other clients know no other way than those names. Nobody but a program
that was told so trusts the certificate. Blocks on disks and processes.
"""

import contextlib
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainshed.core.catalog import google_hosts
from trainshed.replica import durable, roots
from trainshed.serve import certificates

_TRUSTED_BY: Final = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
"""Variables by which the operator tells programs whom to trust."""
_END: Final = "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Interception:
    """`certificate`: PEM with the key and the chain, for relays alone. `trust`: everybody's roots and ours, which any
    user may read."""

    certificate: Path
    trust: Path


def places(data: Path) -> Interception:
    """Where the files of a data directory are, made or not."""
    return Interception(data / "tls" / "storage-relay.pem", data / "trust" / "roots.pem")


def prepare(data: Path, now: float, environ: Mapping[str, str]) -> Interception:
    """Have the files there and good. `now`: seconds since the epoch; `environ`: the service's own. Raises
    CertificatesUnusable, OSError."""
    found = places(data)
    names = (*google_hosts.STORAGE, "*.storage.googleapis.com", *google_hosts.apis())
    made = certificates.signed(data / "tls", "storage", names, now)
    _put(found.certificate, made.key.read_text() + made.chain.read_text(), 0o600)
    found.trust.parent.mkdir(mode=0o755, exist_ok=True)
    found.trust.parent.chmod(0o755)
    _put(found.trust, "".join(_roots(made.ca, environ)), 0o644)
    return found


def _roots(ca: Path, environ: Mapping[str, str]) -> Iterable[str]:
    """Ours and all that a program would trust otherwise, each once: it is shown in place of the machine's own, too."""
    usual = ssl.get_default_verify_paths().cafile
    named = [environ[name] for name in _TRUSTED_BY if environ.get(name)]
    texts = [ca.read_text()]
    for path in (*named, *([usual] if usual else []), *roots.PLACES):
        # Named and not there: the program would not have found it either.
        with contextlib.suppress(OSError):
            texts.append(Path(path).read_text(errors="replace"))
    if not (usual or any(map(os.path.isfile, roots.PLACES))):
        texts += certificates.public_roots()
    blocks: dict[str, None] = {}
    for text in texts:
        for block in text.split(_END)[:-1]:
            begin = block.rfind("-----BEGIN CERTIFICATE-----")
            if begin >= 0:
                blocks[f"{block[begin:]}{_END}\n"] = None
    return blocks


def _put(path: Path, text: str, mode: int) -> None:
    """Write a file unless it is so already; nobody sees a part of it."""
    try:
        if path.read_text() == text and path.stat().st_mode & 0o777 == mode:
            return
    except OSError:
        pass  # Not there yet.
    durable.write(str(path), text)
    path.chmod(mode)
