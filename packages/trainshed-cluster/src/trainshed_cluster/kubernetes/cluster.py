"""Implements `remote`'s `Cluster` for Kubernetes: each hold is a Pod, whose one process becomes the
agent when it is given the agent's document.

It lists the cluster's nodes and Pods once and watches them from then on (`client.Followed`); `look`,
`manifests` and `kueue` decide what follows from them. The module has more than 600 lines because all of them
share one state: the Pods of holds, which calls create and delete while watches report what became of them.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.failure.evidence import Cause
from trainshed.core.held import Leftover
from trainshed.engines.port import NodeState
from trainshed.eventloop.background import Crew, begin
from trainshed_cluster.kubernetes import kueue, look, manifests
from trainshed_cluster.kubernetes.admission import Admission
from trainshed_cluster.kubernetes.client import ApiClient, ApiFailure, Followed, unstarted
from trainshed_cluster.kubernetes.look import compile_report, node_state
from trainshed_cluster.kubernetes.objects import ClusterNode, Pod
from trainshed_cluster.kubernetes.routes import Routes
from trainshed_cluster.kubernetes.settings import KubernetesSettings
from trainshed_cluster.remote.cluster import (
    AgentEnded,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    Hold,
    HoldEnd,
    HoldName,
    MayLive,
    NodeNeed,
    Owner,
)
from trainshed_cluster.remote.messages import TAKEN

log = logging.getLogger(__name__)
T = TypeVar("T")

_TOLD_EVERY = 0.05
"""Seconds for which changes are gathered until they are told."""
_QUOTA_SECONDS = 5.0
"""After which a Pod is asked for again that the namespace's quota did not admit."""
_GONE_SECONDS = 30.0
"""For which it is waited for the end of a Pod that another one is to follow."""
_LEAVING_SECONDS = 2.5
"""For which it is waited until a Pod is over whose agent was told to leave."""
_TELLING_SECONDS = 3.0
"""For which it is waited until a Pod says why its agent was told to end: kubelets that evict tell the API no
sooner than the agent."""
_LAST_GRACE = 1
"""Seconds that an agent has whose work is over, when its Pod is deleted."""
_NODES, _PODS = "/api/v1/nodes", "/api/v1/pods"
_UNTOLD = HoldEnd(Cause.AGENT_LOST, "its Pod is gone, and nobody saw it end")


class KubernetesCluster:
    """A `Cluster` of Kubernetes. `service`: the part of hold names that tells this service from others.
    `command`: of Pods. `cache`: the service's cache directory. `beside`: returns other directories from which
    Pods are sent content; called once, in a thread."""

    def __init__(
        self,
        settings: KubernetesSettings,
        service: str,
        *,
        command: Sequence[str],
        cache: str,
        beside: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._settings = settings
        self._routes = Routes(settings)
        self._service = service
        self._command = tuple(command)
        self._cache = cache
        self._find_beside = beside
        self._beside: Sequence[str] | None = None
        self._client: ApiClient | None = None
        self._tasks = Crew()
        self._nodes: Followed[ClusterNode] | None = None
        #: The watched Pods: of the whole cluster, or of each namespace if no more may be read.
        self._pods: list[Followed[Pod]] = []
        #: This service's Pods, by their hold.
        self._mine: dict[HoldName, Pod] = {}
        #: Uids of Pods whose process waits for its document.
        self._fresh: set[str] = set()
        #: How the Pods that no longer exist ended.
        self._ends: dict[HoldName, HoldEnd] = {}
        #: The Pod of each hold that vanished without an observed end, as it was: its programs may live.
        self._ghosts: dict[HoldName, Pod] = {}
        self._needs: dict[HoldName, NodeNeed] = {}
        #: Kueue's workloads, if jobs wait in its queue.
        self._admission: Admission | None = None
        self._is_detached = False
        #: Holds that a call waits for.
        self._wanted: set[HoldName] = set()
        #: Why a hold's Pod cannot even be created just now.
        self._unmade: dict[HoldName, Delay] = {}
        #: Holds that were given back, until their Pods are gone.
        self._given_back: set[HoldName] = set()
        #: Uids of Pods that this service has deleted, until they are gone.
        self._asked_to_go: set[str] = set()
        self._changed = asyncio.Event()
        self._is_dirty = False
        self._report: ClusterReport | None = None
        self._reader: asyncio.Queue[ClusterReport | None] = asyncio.Queue()

    async def start(self) -> None:
        client = self._client = ApiClient(self._settings)
        try:
            await self._begin(client)
        except BaseException:
            # It may be started again, and nothing of this try is to go on beside that one.
            await self._end_watches()
            raise

    async def _begin(self, client: ApiClient) -> None:
        if not self._settings.namespaces and client.namespace:
            everybodys = {"*": client.namespace}
            self._settings = msgspec.structs.replace(self._settings, namespaces=everybodys)
        self._nodes = Followed(client, _NODES, ClusterNode, self._node_changed)
        try:
            await self._nodes.list()
            await self._list_pods(client)
        except ApiFailure as failure:
            raise unstarted(failure, "nodes and Pods (rights: docs/kubernetes.md)") from failure
        if self._settings.queue == "kueue":
            self._admission = Admission(client, self._service, self._touch, self._has_any_of)
            await self._admission.start(self._namespaces())
        for followed in (self._nodes, *self._pods):
            self._tasks.keep(followed.follow, f"kubernetes: watching {followed.path}")
        self._tasks.keep(self._tell_changes, "kubernetes: telling changes")
        self.report()

    async def close(self) -> None:
        await self._end_watches()
        self._reader.put_nowait(None)

    async def _end_watches(self) -> None:
        await self._tasks.close()
        if self._admission is not None:
            await self._admission.close()
        if self._client is not None:
            await self._client.close()

    def report(self) -> ClusterReport:
        if self._report is None or self._is_dirty:
            self._is_dirty = False
            self._report = self._compile()
        return replace(self._report, looked=time.monotonic())

    async def watch(self) -> AsyncIterator[ClusterReport]:
        while (report := await self._reader.get()) is not None:
            yield report

    def detach(self) -> None:
        self._is_detached = True

    async def owner(self, project: str) -> Owner:
        known = self._settings.namespaces
        if not known:
            return Owner()
        namespace = known.get(project) or known.get("*")
        if namespace is None:
            raise ClusterRefused(
                f"no namespace is named for jobs of project {project or '(none)'}: "
                f"[engines.kubernetes.namespaces] has {', '.join(sorted(known))}"
            )
        return Owner(account=namespace)

    async def acquire(
        self, name: HoldName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Hold:
        (need,) = needs
        self._needs[name] = need
        self._given_back.discard(name)
        self._ends.pop(name, None)
        self._ghosts.pop(name, None)
        self._wanted.add(name)
        try:
            pod = await self._running(name, need, avoid=avoid)
        except BaseException:
            if self._is_detached:
                raise  # The Pod waits on, for the next service to find it.
            # Given back whatever became of it: a request that was sent to the API may still arrive.
            withdrawing = begin(self._try_to_give_back(name), f"kubernetes: withdrawing {name}")
            await asyncio.shield(withdrawing)
            raise
        finally:
            self._wanted.discard(name)
            self._unmade.pop(name, None)
            self._touch()
        return Hold(name, pod.metadata.uid, (pod.spec.node_name,))

    async def start_agent(self, hold: Hold, node: str, argv: Sequence[str], stdin: bytes) -> None:
        if tuple(argv) != self._command:
            raise ValueError("every agent of a cluster is started by the same command")
        pod = self._mine.get(hold.name)
        if pod is None or pod.metadata.uid not in self._fresh or pod.is_leaving or pod.is_over:
            # The Pod has, or had, an agent already, or another start of one broke off.
            need = replace(self._needs[hold.name], node=node)
            pod = await self._running(hold.name, need, anew=True)
        self._fresh.discard(pod.metadata.uid)
        try:
            taken = await self._api.attach(_path(pod), manifests.CONTAINER, stdin, TAKEN)
        except ApiFailure as failure:
            # A container that has just ended cannot be attached to; how it ended says more than the API.
            if failure.status == 404 and await self._ends_within(_LEAVING_SECONDS, hold.name):
                raise self._why_not_taken(hold.name, pod) from failure
            raise ClusterUnavailable(
                f"Pod {pod.metadata.name} was not given what its agent is to do: {failure}"
            ) from failure
        if not taken:
            await self._ends_within(_LEAVING_SECONDS, hold.name)
            raise self._why_not_taken(hold.name, pod)

    async def _ends_within(self, seconds: float, name: HoldName) -> bool:
        """Wait for the end of a Pod. Returns whether it has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._until(lambda: True if self._is_over(name) else None)
        return self._is_over(name)

    def _why_not_taken(self, name: HoldName, pod: Pod) -> ClusterUnavailable:
        """Return the error that says why a Pod's process ended instead of becoming an agent."""
        return _ended_early(self._end_of(self._mine.get(name, pod)))

    async def ended(self, name: HoldName) -> HoldEnd | None:
        if name in self._ends:
            return self._ends[name]
        pod = self._mine.get(name)
        if pod is None:
            raise MayLive(
                f"the Pod of {name} is gone, and nobody saw it end: it may have been deleted by force, and "
                "what ran there may live until its lease is over"
            )
        if pod.is_over:
            return self._end_of(pod)
        return HoldEnd(Cause.AGENT_LOST, f"Pod {pod.metadata.name} does not run")

    async def ending(self, name: HoldName) -> HoldEnd | None:
        def told() -> HoldEnd | None:
            pod = self._mine.get(name)
            if pod is None:
                return self._ends.get(name, _UNTOLD)
            is_told = pod.is_leaving or pod.is_over
            return self._end_of(pod) if is_told else None

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TELLING_SECONDS):
                end = await self._until(told)
                return None if end.loss is Cause.AGENT_LOST else end
        return None

    async def require_answer(self, name: HoldName) -> None:
        """Does nothing: a Pod ends with its agent."""

    async def settle(self, names: Collection[HoldName]) -> tuple[Leftover, ...]:
        return ()  # Likewise; and its controller has written down what it has confirmed.

    async def give_back(self, name: HoldName) -> None:
        self._ends.pop(name, None)
        self._ghosts.pop(name, None)
        need = self._needs.pop(name, None)
        pod = self._mine.get(name)
        if pod is not None:
            self._given_back.add(name)
        if self._admission is not None and (pod or need):
            where = pod.metadata.namespace if pod else ""
            where = where or (manifests.namespace(need) if need else "")
            self._admission.given_back(name, where)
        if pod is None:
            return
        await self._end(name, pod)

    async def _end(self, name: HoldName, pod: Pod) -> None:
        """Delete a Pod once its agent has left. Raises ClusterUnavailable."""
        if pod.is_running and pod.metadata.uid not in self._fresh:
            # Its agent has just been told to leave. Deleting a finished Pod takes effect at once; with any
            # other the kubelet cleans up first, which old kubelets do once a minute.
            await self._ends_within(_LEAVING_SECONDS, name)
        try:
            await self._delete(pod)
        except ApiFailure as failure:
            raise ClusterUnavailable(f"{name}: {failure}") from failure

    # --- Pods ---

    @property
    def _api(self) -> ApiClient:
        assert self._client is not None, "the cluster was started"
        return self._client

    async def _running(
        self,
        name: HoldName,
        need: NodeNeed,
        *,
        anew: bool = False,
        avoid: Collection[str] | None = None,
    ) -> Pod:
        """Return the hold's Pod once it runs; create it if it does not exist. `anew`: create another one in
        any case. `avoid`: nodes that it must not be on, if it may be on any other. Raises ClusterRefused,
        ClusterUnavailable, AgentEnded."""
        pod, again = self._mine.get(name), 0
        if pod is not None and (anew or pod.is_over or pod.is_leaving):
            await self._remove(pod)
            pod, again = None, manifests.again_of(pod) + 1
        if pod is None:
            pod = await self._make(name, need, again, avoid)
        uid, failing_since = pod.metadata.uid, 0.0

        def judged() -> Pod | None:
            nonlocal failing_since
            now = self._mine.get(name)
            if now is None or now.metadata.uid != uid:
                end = self._ends.get(name)
                raise (
                    _ended_early(end)
                    if end
                    else AgentEnded(f"{name}: its Pod was deleted by somebody")
                )
            if why := look.refusal(now):
                raise ClusterRefused(why)
            if now.is_over or now.is_leaving:
                raise _ended_early(self._end_of(now))
            if self._admission is not None and now.spec.node_name and not kueue.is_managed(now):
                raise ClusterRefused(
                    f"Kueue did not take Pod {now.key} in, and it was given a node: enable Kueue's "
                    'integration "pod" for that namespace, or set queue = "trainshed"'
                )
            if now.is_running:
                return now
            if avoid is None or now.spec.node_name:
                self._require_node_up(now.spec.node_name or need.node)
            is_failing = now.waiting is not None and now.waiting.reason in look.TRIED_AGAIN
            if is_failing and not failing_since:
                failing_since = time.monotonic()
            longest = self._settings.pull_minutes * 60
            if failing_since and time.monotonic() - failing_since > longest:
                delay = look.delay(now)
                raise ClusterRefused(
                    f"{delay.message if delay else 'its container does not come'}; it was tried for "
                    f"{self._settings.pull_minutes:g} minutes"
                )
            return None

        return await self._until(judged)

    def _require_node_up(self, node: str) -> None:
        """Raise ClusterUnavailable if a Pod would wait for this node in vain."""
        assert self._nodes is not None
        known = self._nodes.objects.get(node)
        state, cause = (
            node_state(known)[:2] if known else (NodeState.GONE, "the cluster does not list it")
        )
        if state is not NodeState.UP:
            raise ClusterUnavailable(f"no Pod starts on node {node}: {cause}")

    async def _make(
        self, name: HoldName, need: NodeNeed, again: int, avoid: Collection[str] | None
    ) -> Pod:
        """Create the hold's Pod. `again`: how many Pods it had before. Raises ClusterRefused,
        ClusterUnavailable."""
        wanted = need.machine.accelerator
        accelerator = self._routes.accelerator(wanted) if wanted else None
        if wanted and accelerator is None:
            known = ", ".join(self._routes.accelerators) or "no type"
            raise ClusterRefused(
                f"no node of this cluster is known to have {wanted}: "
                f"[engines.kubernetes.accelerators] names {known}"
            )
        if self._beside is None:
            self._beside = await asyncio.to_thread(self._find_beside)
        where, route = manifests.namespace(need), self._routes.of(need.machine)
        manifest = manifests.pod(
            self._settings,
            route,
            accelerator,
            name,
            need,
            command=self._command,
            cache=self._cache,
            beside=self._beside,
            again=again,
            avoid=avoid,
        )
        if self._admission is not None and (delay := kueue.crowded(name, need, self._mine)):
            # Kueue has to count one Pod less than the attempt is to have.
            self._unmade[name] = delay
            self._touch()
            await self._until(lambda: None if kueue.crowded(name, need, self._mine) else True)
            self._unmade.pop(name, None)
        while True:
            is_new = True
            try:
                pod = await self._api.create(f"/api/v1/namespaces/{where}/pods", manifest, Pod)
            except ApiFailure as failure:
                if failure.status == 409 and failure.reason == "AlreadyExists":
                    pod = await self._found(where, manifest["metadata"]["name"], name)
                    is_new = False
                elif failure.is_full:
                    self._unmade[name] = Delay(
                        WaitReason.CLUSTER,
                        f"namespace {where} admits no more: {failure}",
                        word="ExceededQuota",
                    )
                    self._touch()
                    # The API does not signal that a quota has room again.
                    await asyncio.sleep(_QUOTA_SECONDS)
                    continue
                elif failure.is_final:
                    raise ClusterRefused(
                        f"Kubernetes does not take the Pod in namespace {where}: {failure}"
                    ) from failure
                else:
                    raise ClusterUnavailable(f"{name}: {failure}") from failure
            known = self._mine.get(name)
            if is_new and (name in self._ends or name in self._ghosts):
                return pod  # The watch has shown its end before the API answered.
            if known is None or known.metadata.uid != pod.metadata.uid:
                self._pod_changed(pod, gone=False)
            if is_new:
                # It has no agent yet, even if the watch has already shown that it runs.
                self._fresh.add(pod.metadata.uid)
            return pod

    async def _found(self, where: str, pod_name: str, name: HoldName) -> Pod:
        """Return the existing Pod of that name, which an earlier call made whose answer was lost. Raises
        ClusterUnavailable if it belongs to something else."""
        try:
            pod = await self._api.get(f"/api/v1/namespaces/{where}/pods/{pod_name}", Pod)
        except ApiFailure as failure:
            raise ClusterUnavailable(f"{name}: {failure}") from failure
        if manifests.hold_of(pod, self._service) != name:
            raise ClusterUnavailable(
                f"there is a Pod {pod_name} in namespace {where} that is not this service's; delete it, or "
                "give the service a namespace of its own"
            )
        return pod

    async def _delete(self, pod: Pod) -> None:
        """Raises ApiFailure, ClusterUnavailable."""
        uid = pod.metadata.uid
        if uid in self._asked_to_go:
            return  # Its kubelet takes its time.
        if not pod.is_leaving:
            self._asked_to_go.add(uid)
        try:
            await self._api.delete(_path(pod), uid=uid, grace=_LAST_GRACE)
        except (ApiFailure, ClusterUnavailable):
            self._asked_to_go.discard(uid)
            raise

    def _end_of(self, pod: Pod) -> HoldEnd:
        """Return how a Pod ended of which nothing runs any more."""
        by_others = pod.is_leaving and pod.metadata.uid not in self._asked_to_go
        return look.end(pod, deleted=by_others)

    async def _remove(self, pod: Pod) -> None:
        """Delete a Pod and wait until nothing of it runs. Raises ClusterUnavailable."""
        name = manifests.hold_of(pod, self._service)
        assert name is not None
        try:
            if not pod.is_leaving:
                await self._delete(pod)
        except ApiFailure as failure:
            raise ClusterUnavailable(f"{name}: {failure}") from failure
        if not await self._ends_within(_GONE_SECONDS, name):
            raise ClusterUnavailable(
                f"Pod {pod.metadata.name} does not end; its node {pod.spec.node_name} does not answer"
            )
        if name in self._ghosts:
            raise ClusterUnavailable(
                f"Pod {pod.metadata.name} was deleted by force; what ran there may live"
            )
        self._ends.pop(name, None)

    def _is_over(self, name: HoldName) -> bool:
        pod = self._mine.get(name)
        return pod is None or pod.is_over

    async def _try_to_give_back(self, name: HoldName) -> None:
        try:
            await self.give_back(name)
        except ClusterUnavailable as failure:
            log.info("kubernetes: %s is not given back yet: %s", name, failure)

    def _has_any_of(self, group: str) -> bool:
        """Whether anything of an attempt is held or requested. `group`: Kueue's name of the attempt."""
        live = (
            name
            for name, pod in self._mine.items()
            if name not in self._given_back and not pod.is_over
        )
        return any(kueue.group(name) == group for name in (*self._needs, *live))

    # --- what is seen ---

    async def _list_pods(self, client: ApiClient) -> None:
        """List and watch the Pods of the whole cluster, if they may be read: others' Pods take resources of
        nodes, too."""
        # An earlier try may have seen some that are gone by now.
        self._pods.clear()
        self._mine.clear()
        self._fresh.clear()
        everywhere = Followed(client, _PODS, Pod, self._pod_changed)
        try:
            await everywhere.list()
        except ApiFailure as failure:
            if failure.status != 403:
                raise
            log.warning(
                "kubernetes: Pods of others cannot be seen (%s): what they take of nodes is not counted",
                failure,
            )
        else:
            self._pods = [everywhere]
            return
        for where in self._namespaces():
            here = Followed(client, f"/api/v1/namespaces/{where}/pods", Pod, self._pod_changed)
            await here.list()
            self._pods.append(here)

    def _namespaces(self) -> list[str]:
        return sorted(set(self._settings.namespaces.values()) or {"default"})

    def _node_changed(self, node: ClusterNode, *, gone: bool) -> None:
        self._touch()

    def _pod_changed(self, pod: Pod, *, gone: bool) -> None:
        name = manifests.hold_of(pod, self._service)
        self._touch()
        if name is None:
            return
        known = self._mine.get(name) or self._ghosts.get(name)
        if gone:
            if known is not None and known.metadata.uid == pod.metadata.uid:
                self._mine.pop(name, None)
                self._learn_end(name, pod if pod.is_over else known)
                self._given_back.discard(name)
            for some in (self._fresh, self._asked_to_go):
                some.discard(pod.metadata.uid)
            return
        if known is not None and manifests.again_of(known) > manifests.again_of(pod):
            return  # This Pod has ended, or will, and another one has taken its place.
        if not pod.is_over and not pod.is_running:
            self._fresh.add(pod.metadata.uid)
        self._ghosts.pop(name, None)
        self._mine[name] = pod

    def _learn_end(self, name: HoldName, pod: Pod) -> None:
        """Note how a Pod that no longer exists ended."""
        if name in self._given_back:
            return
        if pod.is_over or not pod.spec.node_name or pod.metadata.uid in self._fresh:
            self._ghosts.pop(name, None)
            self._ends[name] = self._end_of(pod)
        elif name not in self._ghosts:
            log.warning(
                "kubernetes: Pod %s was deleted by force on node %s; what ran there may live, and is waited "
                "for as long as its lease",
                pod.metadata.name,
                pod.spec.node_name,
            )
            self._ghosts[name] = pod

    def _touch(self) -> None:
        self._is_dirty = True
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, check: Callable[[], T | None]) -> T:
        while True:
            changed = self._changed
            if (result := check()) is not None:
                return result
            await changed.wait()

    def _compile(self) -> ClusterReport:
        assert self._nodes is not None
        report = compile_report(
            time.monotonic(),
            self._nodes.objects.values(),
            (pod for followed in self._pods for pod in followed.objects.values()),
            service=self._service,
            routes=self._routes,
            overcommit=self._settings.overcommit,
            ghosts={name: pod.spec.node_name for name, pod in self._ghosts.items()},
            wanted=self._wanted,
        )
        delays = {**report.delays, **self._not_admitted(), **self._unmade}
        return replace(report, delays=delays)

    def _not_admitted(self) -> dict[HoldName, Delay]:
        """Return why holds wait that Kueue has not admitted."""
        if self._admission is None:
            return {}
        waiting = ((name, self._mine.get(name)) for name in self._wanted)
        delays = {name: self._admission.delay(name, pod) for name, pod in waiting if pod}
        return {name: delay for name, delay in delays.items() if delay}

    async def _tell_changes(self) -> None:
        last: ClusterReport | None = None
        while True:
            changed = self._changed
            report = self.report()
            if last is None or _told_of(last) != _told_of(report):
                last = report
                self._reader.put_nowait(report)
            await changed.wait()
            await asyncio.sleep(_TOLD_EVERY)


def _ended_early(end: HoldEnd) -> ClusterUnavailable:
    """Return the error for a Pod that ended before its agent connected. If its node was lost, neither the
    image nor the agent is at fault."""
    return (ClusterUnavailable if end.loss is Cause.NODE_FAILED else AgentEnded)(end.why)


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _told_of(report: ClusterReport) -> tuple[object, ...]:
    return report.nodes, report.agents, report.delays, report.idle
