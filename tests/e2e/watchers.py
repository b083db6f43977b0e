"""Event streams as of many browsers, which a process of its own holds open and reads until it is told to
stop.

`python -m tests.e2e.watchers HOST PORT CREDENTIALS PATH...`: a stream for each path. Says `open` when all
have begun, and at the end how many bytes and events each has had, as JSON.
"""

import asyncio
import json
import sys


class Stream:
    """One event stream."""

    def __init__(self) -> None:
        self.size = 0
        self.events = 0
        self.began = asyncio.Event()

    async def read(self, host: str, port: int, credentials: str, path: str) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        fields = f"Host: {host}:{port}\r\nAuthorization: {credentials}\r\nAccept: text/event-stream"
        writer.write(f"GET {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        status = await reader.readline()
        assert b" 200 " in status, (path, status, await reader.read(2000))
        while data := await reader.read(1 << 16):
            self.size += len(data)
            self.events += data.count(b"event: ")
            if self.events:
                self.began.set()
        writer.close()


async def watch(host: str, port: int, credentials: str, paths: list[str]) -> None:
    streams = [Stream() for _ in paths]
    tasks = [
        asyncio.create_task(stream.read(host, port, credentials, path))
        for stream, path in zip(streams, paths, strict=True)
    ]
    begun = [asyncio.create_task(stream.began.wait()) for stream in streams]
    await asyncio.wait([asyncio.gather(*begun), *tasks], return_when=asyncio.FIRST_COMPLETED)
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    for task in ended:
        task.result()
    print(json.dumps([(stream.size, stream.events) for stream in streams]), flush=True)


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
