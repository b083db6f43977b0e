"""The secure side of a replica's endpoint, for clients that call Google's hosts by name and cannot be told another
address: TLS ends here, by a certificate that the replica's programs are made to trust. HTTP/1.1 is read, and answered by
whom it concerns; HTTP/2, which is gRPC, is handed on to the service as it is.

Loaded by a relay process, and only if there is a certificate. Runs on Python 3.6.
"""

import json
import socket
import ssl
import threading

from trainshed.replica import conversation, failures, parting, streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.replica import outside

_HANDSHAKE_SECONDS = 30.0


def preamble(line: bytes) -> bytes:
    """The line, a JSON object, with a word that the client spoke TLS: it must be told https:// addresses."""
    return json.dumps({**json.loads(line.decode("utf-8")), "scheme": "https"}).encode() + b"\n"


class Door:
    """Where clients come in over TLS, each with a thread of its own."""

    __slots__ = ("_behind", "_context", "_failing", "_grpc", "_out", "_rest")

    def __init__(
        self,
        certificate: str,
        behind: conversation.Behind,
        out: "outside.Outside | None" = None,
        rest: "conversation.Behind | None" = None,
        grpc: "conversation.Behind | None" = None,
        *,
        failing: "failures.Failures | None" = None,
    ) -> None:
        """`certificate`: a PEM file with the key and the chain. Without a good one everybody is turned away: the rest of
        the endpoint is of use all the same. `out`: the way to the real hosts; `rest`, `grpc`: whoever answers for the
        service's APIs; None = there is none. `failing` is told of handshakes and of answers."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Who speaks both is answered over HTTP/1.1; clients of gRPC offer nothing but HTTP/2.
        made.set_alpn_protocols(["http/1.1"] + ["h2"] * (grpc is not None))
        self._context: "ssl.SSLContext | None" = made
        self._failing = failing or failures.Failures()
        self._behind = behind
        self._out = out
        self._rest = rest
        self._grpc = grpc
        try:
            made.load_cert_chain(certificate)
        except OSError:
            self._context = None

    def enter(self, connection: socket.socket) -> None:
        """Serve an accepted connection, which is ours from here on."""
        try:
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except RuntimeError:
            connection.close()  # There is no room for one more thread.

    def refuse(self, connection: socket.socket) -> None:
        """Tell whoever is behind an accepted connection that he does not belong here."""
        parting.send_away(connection, self._secured)

    def _secured(self, connection: socket.socket) -> ssl.SSLSocket:
        """Raises OSError: there is no certificate, the client does not trust it, or does not speak TLS."""
        if self._context is None:
            raise ConnectionError("no certificate")
        return self._context.wrap_socket(connection, server_side=True)

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            client = self._secured(connection)
        except OSError as error:
            if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
                self._failing.handshake_failed(str(error.reason))
            connection.close()
            return
        if client.selected_alpn_protocol() == "h2" and self._grpc is not None:
            streams.pass_on(client, self._grpc.connected())
            return
        client.settimeout(None)
        conversation.Conversation(client, self._behind, self._out, self._rest, self._failing).run()
