"""Bugs in what runs programs: `engines` and `replica`."""

from typing import Final

from tests.mutants.mutant import Mutant, tests

_LOCAL, _REPLICA = (
    "packages/trainshed/src/trainshed/engines/local/",
    "packages/trainshed/src/trainshed/replica/",
)
_REMOTE, _TRANSPORT = (
    "packages/trainshed-cluster/src/trainshed_cluster/remote/",
    "packages/trainshed-cluster/tests/remote/",
)
_SEGMENTS = tests("tests/unit/test_replica_segments.py")
_JOURNAL = tests("tests/unit/test_replica_journal.py")
_LEASES = tests("tests/unit/test_engine_local_leases.py")
_CONTRACT = "tests/contract/engines/"
_CONFORMANCE = "tests/engines/test_conformance.py::TestLocal"

RUNNING: Final = (
    Mutant(
        "line doubled at a segment's turn",
        _REPLICA + "observe/segments.py",
        "            self._file = fresh\n",
        "            again = (self.lines - 1, self._last_time, quoted(self._tail[-1]))\n"
        '            fresh.append((\'{"n":%d,"t":%d,"s":"o","m":%s}\\n\' % again).encode())\n'
        "            self._file = fresh\n",
        "The last line of each segment is the first one of the next as well.",
        _SEGMENTS,
    ),
    Mutant(
        "line lost at a torn tail",
        _REPLICA + "observe/segments.py",
        '        self._size = skipped + data.rfind(b"\\n") + 1\n',
        '        self._size = skipped + data.rfind(b"\\n", 0, -1) + 1\n',
        "A log that is continued loses its last whole line.",
        _SEGMENTS,
    ),
    Mutant(
        "torn tail kept",
        _REPLICA + "observe/segments.py",
        "        os.ftruncate(handle, self._size)\n",
        "",
        "What a crash left unfinished becomes one line with what comes next.",
        _SEGMENTS,
    ),
    Mutant(
        "numbers begin anew",
        _REPLICA + "observe/segments.py",
        '            self.lines = last["n"] + 1\n',
        '            self.lines = last["n"]\n',
        "Two lines of a replica have one number after a restart in place.",
        _SEGMENTS,
    ),
    Mutant(
        "line doubled on a full disk",
        _REPLICA + "observe/growing_files.py",
        "                self._waiting = self._waiting[os.write(self._handle, self._waiting) :]\n",
        "                if os.write(self._handle, self._waiting) == len(self._waiting):\n"
        '                    self._waiting = b""\n',
        "What found room in part is written once more as a whole when there is room again.",
        _SEGMENTS,
    ),
    Mutant(
        "fence of an incarnation ignored",
        _REPLICA + "supervisor/journal.py",
        "        if entries.latest >= incarnation:\n            raise Refused(protocol.REFUSED_KNOWN)\n",
        "",
        "A request to start that is read late starts a replica a second time.",
        _JOURNAL,
    ),
    Mutant(
        "stop mark ignored",
        _REPLICA + "supervisor/journal.py",
        "        if any(os.path.exists(mark) for mark in marks):\n",
        "        if all(os.path.exists(mark) for mark in marks):\n",
        "What was stopped before it began begins all the same.",
        _JOURNAL,
    ),
    Mutant(
        "expelled in word only",
        _REPLICA + "supervisor/journal.py",
        "        if entries.latest < incarnation:\n            _write_start(lock, incarnation, 0, 0)\n",
        "",
        "A replica that is called lost starts when its request is read at last.",
        _JOURNAL,
    ),
    Mutant(
        "garbled entry spoils the journal",
        _REPLICA + "supervisor/journal.py",
        '    view = memoryview(b"\\n" + protocol.encode(entry))\n',
        "    view = memoryview(protocol.encode(entry))\n",
        "What a full disk left unfinished takes the next entry with it.",
        _JOURNAL,
    ),
    Mutant(
        "lease not renewed",
        _LOCAL + "reconciler.py",
        "        self.watch()\n        is_unborn",
        "        is_unborn",
        "Shims are asked once, and never again.",
        _LEASES,
    ),
    Mutant(
        "lease of the last incarnation",
        _LOCAL + "slot_handle.py",
        "        self._heard_of = True  # Its first lease begins now.\n        self._silent = 0\n",
        "",
        "A replica that is started again is killed for the silence of the one before it.",
        _LEASES,
    ),
    Mutant(
        "notes lost with the service",
        _LOCAL + "findings.py",
        "        return Over(record, tuple(entries.notes(incarnation)))\n    lock = ",
        "        return Over(record)\n    lock = ",
        "What a program's last moments were like is not told by a service that comes later.",
        tests(_CONTRACT + "test_notes.py"),
    ),
    Mutant(
        "slots released while they live",
        _LOCAL + "gangs.py",
        "        if live := [str(replica) for replica, slot_handle in gang.items() if slot_handle.is_live]:\n"
        "            raise EngineUnavailable(\n"
        "                f\"{', '.join(live)} of job {job_uid} still run; stop the attempt and wait for "
        'their end"\n'
        "            )\n",
        "",
        "A program loses its directory under its feet, and its address goes to another.",
        tests(_CONFORMANCE),
    ),
    Mutant(
        "stop not written down",
        _LOCAL + "engine.py",
        "joined(asyncio.to_thread(self._layout.mark_stopped, job_uid, attempt))",
        "joined(asyncio.sleep(0))",
        "A start that is under way outlives the stop of its attempt.",
        tests(_CONFORMANCE),
    ),
    Mutant(
        "any line introduces a program",
        _REMOTE + "hub.py",
        "if self._introduction is None or not self._introduction(name, line):",
        "if self._introduction is None:",
        "A node that was broken into reads the buckets of every project.",
        tests(_TRANSPORT + "test_tunnels.py"),
    ),
    Mutant(
        "a credential outlives its hold",
        _REMOTE + "hub.py",
        "if not name or left <= 0 or not self._admits(name):",
        "if not name or left <= 0:",
        "An agent whose hold was given back goes on as if it had it.",
        tests(_TRANSPORT + "test_hub.py"),
    ),
    Mutant(
        "silence goes unheard",
        _REMOTE + "lease.py",
        "return len(self._said) >= _UNANSWERED",
        "return False",
        "An agent whose cable was cut waits for an answer for a quarter of an hour.",
        tests(_TRANSPORT + "unit/test_lease.py"),
    ),
)
