"""Posts a notification to a webhook, signed as Standard Webhooks defines.

It follows no redirect, so that only the operator decides which hosts the service calls. It blocks, so it is
called in a thread.
"""

import base64
import hashlib
import hmac
import http.client
import ssl
from typing import Final
from urllib.parse import urlsplit

from trainshed.notifying.targets import NotSent, key_of

TIMEOUT: Final = 10.0
"""Seconds for each step: connecting, sending, and waiting for the answer."""
_LONGEST_ANSWER: Final = 4096


def signed(id_: str, at: int, body: bytes, secret: str) -> dict[str, str]:
    """Returns the headers of a request: the notification's id (the same at each try), the time of sending
    (seconds since the epoch), and with a `secret` the HMAC-SHA256 of `id.timestamp.body`."""
    headers = {"webhook-id": id_, "webhook-timestamp": str(at)}
    if secret:
        signature = hmac.new(key_of(secret), f"{id_}.{at}.".encode() + body, hashlib.sha256)
        headers["webhook-signature"] = "v1," + base64.b64encode(signature.digest()).decode()
    return headers


def post(url: str, body: bytes, headers: dict[str, str], context: ssl.SSLContext | None) -> None:
    """Post JSON. Raises NotSent unless the answer is 2xx. `context`: the authorities that TLS trusts; None =
    the system's."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        trusted = context or ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=TIMEOUT, context=trusted
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    try:
        sent = {**headers, "content-type": "application/json", "user-agent": "trainshed"}
        connection.request("POST", path, body, sent)
        answer = connection.getresponse()
        answer.read(_LONGEST_ANSWER)
    except (OSError, http.client.HTTPException) as failure:
        raise NotSent(f"{where} did not take it: {str(failure) or repr(failure)}") from failure
    finally:
        connection.close()
    if 300 <= answer.status < 400:
        raise NotSent(f"{where} answers {answer.status}: redirects are not followed")
    if not 200 <= answer.status < 300:
        raise NotSent(f"{where} answers {answer.status} {answer.reason}".rstrip())
