"""Bugs in what keeps: `store` and `buckets`."""

from typing import Final

from tests.mutants.mutant import SIMULATION, Mutant, tests

_SQLITE, _LOGS = (
    "packages/trainshed/src/trainshed/store/sqlite/",
    "packages/trainshed/src/trainshed/store/logs/",
)
_BUCKETS = "packages/trainshed/src/trainshed/buckets/"
_CONTRACT = tests("tests/contract/store/test_store_contract.py")
_LOG_READER = tests("tests/unit/test_store_logs.py")
_OBJECTS = tests("tests/unit/test_buckets_objects.py")
_POINTS = tests("tests/unit/test_points.py")

KEEPING: Final = (
    Mutant(
        "read further than it is stored",
        "packages/trainshed/src/trainshed/controller/curves.py",
        "        await files.append(uid, kept, thins=True)\n",
        "        await self._stores.curves.put(uid, progress, ())\n"
        "        await files.append(uid, kept, thins=True)\n",
        "A kill while the points of a job's curves are stored loses them.",
        tests("tests/contract/test_job_curves.py"),
    ),
    Mutant(
        "another file goes on as the one before",
        "packages/trainshed/src/trainshed/summaries/reading.py",
        "is_due or progress.digest != _digest(opened, progress.offset)",
        "is_due",
        "What a program has written anew into a file of the same name is read from the middle.",
        tests("tests/unit/test_summaries_reading.py"),
    ),
    Mutant(
        "state without its timeline",
        _SQLITE + "jobs.py",
        "            append_timeline(connection, job.uid, commit.timeline)\n",
        "            if not commit.consumed_intents:\n"
        "                append_timeline(connection, job.uid, commit.timeline)\n",
        "A job has moved, and nothing says why.",
        SIMULATION,
    ),
    Mutant(
        "cancel lost at the end",
        _SQLITE + "jobs.sql",
        "  AND (:is_live = 1 OR NOT EXISTS (SELECT 1 FROM intents WHERE job_uid = :uid AND seq > "
        ":consumed))\n",
        "",
        "A cancel that was accepted while the job's last step was being stored is never taken in.",
        SIMULATION,
    ),
    Mutant(
        "intents consumed too far",
        _SQLITE + "jobs.sql",
        "DELETE FROM intents WHERE job_uid = :uid AND seq <= :consumed;",
        "DELETE FROM intents WHERE job_uid = :uid;",
        "A cancel that comes while a drill is being stored goes with it.",
        SIMULATION,
    ),
    Mutant(
        "lists skip a row",
        _SQLITE + "narrowing.py",
        "AND {equal} AND uid < :below",
        "AND {equal} AND uid < :below - 1",
        "The first job of each page but the first is in no page.",
        SIMULATION,
    ),
    Mutant(
        "etag not checked",
        _SQLITE + "jobs.py",
        '            if etag not in ("", current):\n',
        '            if etag == "*":\n',
        "Who changes labels undoes what another has changed meanwhile.",
        SIMULATION,
    ),
    Mutant(
        "answered before it is stored",
        _SQLITE + "writer.py",
        '        execute("COMMIT")\n',
        '        _answer(batch)\n        execute("COMMIT")\n',
        "What was acknowledged is gone after a crash.",
        SIMULATION,
    ),
    Mutant(
        "half a command is stored",
        _SQLITE + "writer.py",
        '                execute("ROLLBACK TO command")\n',
        "",
        "What a refused request had written until then stays, in company with others.",
        _CONTRACT,
    ),
    Mutant(
        "generation not guarded",
        _SQLITE + "jobs.sql",
        "  AND generation = :expected_generation\n",
        "",
        "A step is written over another one that it does not know.",
        _CONTRACT,
    ),
    Mutant(
        "fence of the leader ignored",
        _SQLITE + "jobs.sql",
        "  AND EXISTS (SELECT 1 FROM leader WHERE id = 1 AND epoch = :epoch)\n",
        "",
        "A service that was superseded goes on writing.",
        _CONTRACT,
    ),
    Mutant(
        "way out of a final state",
        _SQLITE + "jobs.sql",
        "  AND (is_live = 1 OR state = :state)\n",
        "",
        "A job that is over begins again.",
        _CONTRACT,
    ),
    Mutant(
        "line given twice to a follower",
        _LOGS + "segments.py",
        "return entry.n <= seen",
        "return entry.n < seen",
        "Who follows a log sees the last line of each page again.",
        _LOG_READER,
    ),
    Mutant(
        "last page not told",
        _LOGS + "reader.py",
        "entries[:limit])\n"
        "    return LogPage(lines, lines[-1].cursor if len(entries) > limit and lines else None)",
        "entries[:limit])\n"
        "    return LogPage(lines, lines[-1].cursor if len(entries) > limit + 1 and lines else None)",
        "The last line of a log is in no page when the others fill one.",
        _LOG_READER,
    ),
    Mutant(
        "object replaced all the same",
        _BUCKETS + "port.py",
        "        if self.generation_match is not None and generation != self.generation_match:\n",
        "        if self.generation_match and generation != self.generation_match:\n",
        "Of two who create an object only if it is not there, both do.",
        _OBJECTS,
    ),
    Mutant(
        "listing loses an object between pages",
        _BUCKETS + "listing.py",
        "room <= 0:\n            return Page(objects, prefixes, encode_token(name.encode()))\n",
        'room <= 0:\n            return Page(objects, prefixes, encode_token(name.encode() + b"\\0"))\n',
        "An object at the border of two pages is in neither.",
        _OBJECTS,
    ),
    Mutant(
        "a write that is repeated doubles its points",
        "packages/trainshed/src/trainshed/store/points.py",
        "later is None or steps[later] != steps[n]",
        "later is None or steps[later] >= steps[n]",
        "A client that had no answer, and sends its points again, sees them twice.",
        _POINTS,
    ),
    Mutant(
        "directory beside taken for a job's output",
        _SQLITE + "reader.py",
        "for end in range(len(parts), _OF_A_BUCKET, -1)]",
        "for end in range(_OF_A_BUCKET + 1, len(parts) + 1)]",
        "A model is said to be of the outer one of two jobs whose directories lie in each other.",
        tests("tests/contract/api/test_model_lineage.py"),
    ),
)
