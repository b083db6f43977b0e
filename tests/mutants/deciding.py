"""Bugs in what decides: `core`, `scheduler`, `controller`."""

from typing import Final

from tests.mutants.mutant import SIMULATION, Mutant, tests

_CORE, _CONTROLLER = (
    "packages/trainshed/src/trainshed/core/",
    "packages/trainshed/src/trainshed/controller/",
)
_SCHEDULER = "packages/trainshed/src/trainshed/scheduler/"

DECIDING: Final = (
    Mutant(
        "retry not counted",
        _CORE + "lifecycle/endings.py",
        "        retries=counted(transition.job.retries, rule.name),\n",
        "        retries=transition.job.retries,\n",
        "A job that fails the same way each time is tried until its attempts are used up.",
        SIMULATION,
    ),
    Mutant(
        "retries off by one",
        _CORE + "failure/rules.py",
        "        elif retries >= budget:\n",
        "        elif retries > budget:\n",
        "One retry more than the table gives.",
        SIMULATION,
    ),
    Mutant(
        "restarts off by one",
        _CORE + "failure/rules.py",
        "        if restarts < rule.restarts:\n",
        "        if restarts <= rule.restarts:\n",
        "One restart of a replica more than the table gives.",
        SIMULATION,
    ),
    Mutant(
        "event of an earlier incarnation",
        _CORE + "lifecycle/machine.py",
        "        if replica.id == event.replica and replica.incarnation == event.incarnation:\n",
        "        if replica.id == event.replica:\n",
        "An end that is told twice ends the replica's successor as well.",
        SIMULATION,
    ),
    Mutant(
        "event of an earlier attempt",
        _CORE + "lifecycle/machine.py",
        "    if event.attempt != job.attempt:\n        return None\n    for replica",
        "    for replica",
        "What is told late of a given up attempt ends the next one.",
        SIMULATION,
    ),
    Mutant(
        "end after the cancel counts",
        _CORE + "lifecycle/endings.py",
        "        and evidence.exit.ended <= decided\n",
        "",
        "A cancelled job fails or succeeds because its program ended while it was shut down.",
        SIMULATION,
    ),
    Mutant(
        "loss taken for the service's",
        _CORE + "lifecycle/machine.py",
        "(Cause.SERVICE if event.by_service else Cause(event.loss))",
        "Cause.SERVICE",
        "A replica whose node dies spends the budget of internal errors.",
        SIMULATION,
    ),
    Mutant(
        "running in part",
        _CORE + "lifecycle/endings.py",
        "    if not all(r.state is ReplicaState.RUNNING or r.state.is_over for r in job.replicas):\n",
        "    if not any(r.state is ReplicaState.RUNNING or r.state.is_over for r in job.replicas):\n",
        "A job is RUNNING, and its limit of time runs, while most of its gang has no process.",
        SIMULATION,
    ),
    Mutant(
        "gang started in part",
        _CORE + "lifecycle/transition.py",
        "    if due := _due(job):\n",
        "    if due := _due(job)[:1]:\n",
        "One replica waits for peers that are started only after it.",
        SIMULATION,
    ),
    Mutant(
        "back-off forgotten",
        _CORE + "lifecycle/endings.py",
        "        transition.change(retry=None, not_before=retry.not_before)\n",
        "        transition.change(retry=None)\n",
        "A job without room asks again at once, until its retries are used up.",
        SIMULATION,
    ),
    Mutant(
        "restart without its pause",
        _CORE + "lifecycle/endings.py",
        "        not_before=transition.now + verdict.back_off if verdict.back_off else 0,\n",
        "        not_before=0,\n",
        "A reducer that dies young is started again and again at once.",
        tests("tests/unit/test_lifecycle_reducers.py"),
    ),
    Mutant(
        "back to the node that is left",
        _CORE + "lifecycle/endings.py",
        '        node="" if leaves else replica.node,\n',
        "        node=replica.node,\n",
        "Maintenance never ends: what is asked to leave comes back.",
        SIMULATION,
    ),
    Mutant(
        "time limit from the creation on",
        _CORE + "lifecycle/records.py",
        "        return self.started + self.waited + self.spec.scheduling.timeout\n",
        "        return self.created + self.waited + self.spec.scheduling.timeout\n",
        "What a job waits in the queue is taken from its running time.",
        SIMULATION,
    ),
    Mutant(
        "drill fires again",
        _CORE + "lifecycle/machine.py",
        "                and drill.is_armed\n",
        "",
        "A line that is found again after a restart kills the replica once more.",
        SIMULATION,
    ),
    Mutant(
        "act before commit",
        _CONTROLLER + "controller.py",
        "            generation = await self._commit(commit)\n            tracked.live =",
        "            tracked.live = LiveJob(job, live.generation)\n"
        "            tracked.carrier.look()\n"
        "            generation = await self._commit(commit)\n            tracked.live =",
        "A crash between the two leaves programs that no stored state knows of.",
        SIMULATION,
    ),
    Mutant(
        "stale commit's events dropped",
        _CONTROLLER + "mailboxes.py",
        "                stale += 1\n                self._put_back(uid, mailbox)\n",
        "                stale += 1\n                self._mailboxes[uid].reload = True\n",
        "The end of a replica is forgotten because a user cancelled in that moment.",
        SIMULATION,
    ),
    Mutant(
        "leftovers kept",
        _CONTROLLER + "leftovers.py",
        "                if stored(uid) is None:\n",
        "                if uid == 0:\n",
        "Slots, and programs, of jobs that ended just before the service did stay for ever.",
        tests(
            "tests/sim/test_worlds.py::test_slots_in_which_nothing_was_started_are_given_back_by_the_next_service"
        ),
    ),
    Mutant(
        "live jobs not looked at",
        _CONTROLLER + "controller.py",
        "                if uid in self._tracked:\n                    self._mailboxes.look(uid)\n",
        "                pass\n",
        "What was asked just before a restart, a cancel say, is found by nobody.",
        SIMULATION,
    ),
    Mutant(
        "cancel of trials forgotten",
        _CONTROLLER + "parents.py",
        "        for uid, cause in reconciled.cancel:\n",
        "        is_news = reconciled.job.state is not live.job.state\n"
        "        for uid, cause in reconciled.cancel if is_news else ():\n",
        "Trials of a cancelled tuning job run on if the service died just after it was stored.",
        tests("tests/sim/test_parents.py::test_a_tuning_job_can_be_cancelled_at_any_time"),
    ),
    Mutant(
        "alarm rings early",
        _CONTROLLER + "mailboxes.py",
        "        if asyncio.get_running_loop().time() < alarm.due[deadline.at]:\n",
        "        if asyncio.get_running_loop().time() < 0:\n",
        "After a day of waiting a limit is met before its time.",
        SIMULATION,
    ),
    Mutant(
        "restart taken for done",
        _CONTROLLER + "carrier.py",
        "        return done.attempt == other.attempt and set(other.waiting) <= set(done.waiting)\n",
        "        return done.attempt == other.attempt\n",
        "A replica that is to be started again is not, because its gang was started once.",
        SIMULATION,
    ),
    Mutant(
        "decision of yesterday",
        _CONTROLLER + "capacity.py",
        "                return set(state.places) == set(nodes)\n",
        "                return True\n",
        "Room that was given to another meanwhile is taken all the same.",
        tests(
            "tests/sim/test_restarts.py::test_room_that_was_given_to_another_job_meanwhile_is_not_taken"
        ),
    ),
    Mutant(
        "grown memory not counted",
        _CONTROLLER + "capacity.py",
        "before.gang if before and job.memory_factor == 1.0 else",
        "before.gang if before else",
        "A node is given more than it has when a job is tried again with more memory.",
        tests("tests/sim/test_worlds.py::test_memory_that_grows_is_counted_before_it_is_given"),
    ),
    Mutant(
        "quota not released",
        _SCHEDULER + "snapshot.py",
        "            meter.used -= value\n",
        "            meter.used -= 0 if entry.state.leaving else value\n",
        "A project comes to its quota by jobs that are long over.",
        SIMULATION,
    ),
    Mutant(
        "quota not looked at",
        _SCHEDULER + "entries.py",
        "self.allows(amount, self.limit - self.used, self.used)",
        "self.allows(amount, self.limit, self.used)",
        "Every job on its own is within the quota, and all together are not.",
        SIMULATION,
    ),
    Mutant(
        "priority inverted",
        _SCHEDULER + "snapshot.py",
        "    return (-entry.gang.priority, entry.gang.spot)\n",
        "    return (entry.gang.priority, entry.gang.spot)\n",
        "What matters most waits longest.",
        SIMULATION,
    ),
)
