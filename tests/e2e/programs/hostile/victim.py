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
if then == "fail":
    sys.exit(3)
endpoint = os.environ["GCE_METADATA_HOST"]
# Any port, as the machine's own programs may have 2222.
listener = socket.create_server((endpoint.split(":")[0], 0))
print("ENDPOINT", endpoint, listener.getsockname()[1], flush=True)
while True:
    time.sleep(600)
