"""A web page with an echo WebSocket, at a port (1st argument) and at the Unix socket page.sock of the working
directory.
"""

import asyncio
import base64
import hashlib
import json
import sys

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PAGE = b"""<!doctype html><title>Page of a job</title><p id="heard"></p><script>
const socket = new WebSocket(`ws://${location.host}/echo`, ["other", "echo"]);
socket.onopen = () => socket.send("hello");
socket.onmessage = ({ data }) => {
  document.getElementById("heard").textContent = `${socket.protocol}: ${data}`;
};
</script>"""


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request."""
    first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = [line.partition(": ")[::2] for line in rest if line]
    headers = {name.lower(): value for name, value in pairs}
    if "sec-websocket-key" in headers:
        await echo(reader, writer, headers)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = {"first": first, "headers": headers, "body": len(body)}
        answer = PAGE if first.startswith("GET / ") else json.dumps(request).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nset-cookie: theirs=1\r\n"
            b"set-cookie: trainshed-page=stolen\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer)
        )
    writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: "dict[str, str]") -> None:
    """Echo every message until the peer closes."""
    key = hashlib.sha1(headers["sec-websocket-key"].encode() + MAGIC).digest()
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-protocol: echo\r\nsec-websocket-accept: %b\r\n\r\n" % base64.b64encode(key)
    )
    while True:
        kind, size = await reader.readexactly(2)
        size &= 127
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        mask = await reader.readexactly(4)
        data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(await reader.readexactly(size)))
        head = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
        writer.write(bytes([kind]) + head + data)
        if kind & 15 == 8:
            return


async def main() -> None:
    """Serve until killed."""
    await asyncio.start_unix_server(serve, "page.sock")
    await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    print("here", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
