"""A program of somebody else's job: it has a secret in every place that a program can have one, and waits."""

import os
import socket
import sys
import time

secret, then = sys.argv[1:3]
for place in ("secret", os.path.join(os.environ["TMPDIR"], "secret")):
    with open(place, "w") as file:
        file.write(secret)
print(secret)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if then == "fail":
    sys.exit(3)
listener.bind((os.environ["GCE_METADATA_HOST"].split(":")[0], 2222))
listener.listen(16)
print("ENDPOINT " + os.environ["GCE_METADATA_HOST"], flush=True)
while True:
    time.sleep(600)
