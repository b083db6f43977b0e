"""Implements `remote`'s `Cluster` for Kubernetes. Each allocation is a Pod. The Pod's only process becomes
the agent when it receives the agent's document, which is its startup data.

The service lists nodes and Pods once and then watches them (`watches.WatchedCollection`). `states`,
`manifests` and `kueue` contain the rules. `own_pods.OwnPods` contains the Pods of this service's allocations.
Requests and watches update `OwnPods`. The module is long because it contains the whole interface `Cluster`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.failure.evidence import Cause
from trainshed.core.held import Leftover
from trainshed.engines.port import NodeState
from trainshed.eventloop.background import Crew, begin
from trainshed_cluster.kubernetes import kueue, manifests, states
from trainshed_cluster.kubernetes.admission import Admission
from trainshed_cluster.kubernetes.client import ApiClient, ApiFailure, start_error
from trainshed_cluster.kubernetes.objects import ClusterNode, Pod
from trainshed_cluster.kubernetes.own_pods import OwnPods
from trainshed_cluster.kubernetes.routes import Routes
from trainshed_cluster.kubernetes.settings import KubernetesSettings
from trainshed_cluster.kubernetes.states import compile_report, node_state
from trainshed_cluster.kubernetes.watches import WatchedCollection
from trainshed_cluster.remote.cluster import (
    AgentEnded,
    AgentsMayLive,
    Allocation,
    AllocationEnd,
    AllocationName,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    NodeNeed,
    Owner,
)
from trainshed_cluster.remote.messages import DOCUMENT_READ

log = logging.getLogger(__name__)
T = TypeVar("T")

_REPORT_INTERVAL = 0.05
"""Seconds for which changes are collected before they are reported together."""
_QUOTA_RETRY_INTERVAL = 5.0
"""Seconds before a Pod that exceeded the namespace's quota is requested again."""
_DELETE_TIMEOUT = 30.0
"""Maximum seconds to wait for the end of a Pod before another Pod replaces it."""
_EXIT_TIMEOUT = 2.5
"""Seconds to wait for the end of a Pod after its agent was shut down."""
_EVICTION_TIMEOUT = 3.0
"""Seconds to wait until Kubernetes records the reason for a Pod's eviction. The kubelet may record the reason
after it has sent a signal to the agent."""
_DELETE_GRACE = 1
"""Grace period in seconds when the Pod of a finished agent is deleted."""
_NODES, _PODS = "/api/v1/nodes", "/api/v1/pods"
_UNOBSERVED_END = AllocationEnd(Cause.AGENT_LOST, "its Pod no longer exists, and its end was not observed")


class KubernetesCluster:
    """A `Cluster` of Kubernetes.

    Args:
        service: The part of allocation names that identifies this service.
        command: The command of every Pod, which starts an agent.
        cache: The service's cache directory.
        beside: Returns the directories outside the cache whose files Pods also need, such as interpreters.
            Called once, in a thread.
    """

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
        self._nodes: WatchedCollection[ClusterNode] | None = None
        #: The watched Pods: one collection for the whole cluster, or, if the account may not list all Pods,
        #: one for each namespace of jobs.
        self._pods: list[WatchedCollection[Pod]] = []
        self._own = OwnPods(service)
        self._needs: dict[AllocationName, NodeNeed] = {}
        #: Watches Kueue's workloads; None = jobs do not wait in a queue of Kueue.
        self._admission: Admission | None = None
        self._is_detached = False
        #: Allocations for which an `acquire` call is waiting.
        self._awaited: set[AllocationName] = set()
        #: Why the Pods of these allocations cannot be created now.
        self._creation_delays: dict[AllocationName, Delay] = {}
        self._changed = asyncio.Event()
        self._is_outdated = False
        self._report: ClusterReport | None = None
        self._reader: asyncio.Queue[ClusterReport | None] = asyncio.Queue()

    async def start(self) -> None:
        client = self._client = ApiClient(self._settings)
        try:
            await self._start_watches(client)
        except BaseException:
            # End the watches of this call. The next call of `start` starts new watches, and must not run at
            # the same time as these.
            await self._end_watches()
            raise

    async def _start_watches(self, client: ApiClient) -> None:
        if not self._settings.namespaces and client.namespace:
            default_namespace = {"*": client.namespace}
            self._settings = msgspec.structs.replace(self._settings, namespaces=default_namespace)
        self._nodes = WatchedCollection(client, _NODES, ClusterNode, self._node_changed)
        try:
            await self._nodes.list()
            await self._list_pods(client)
        except ApiFailure as failure:
            raise start_error(
                failure, "nodes and Pods (for the required rights, see docs/kubernetes.md)"
            ) from failure
        if self._settings.queue == "kueue":
            self._admission = Admission(client, self._service, self._mark_changed, self._has_any_of)
            await self._admission.start(self._namespaces())
        for followed in (self._nodes, *self._pods):
            self._tasks.keep(followed.follow, f"kubernetes: watching {followed.path}")
        self._tasks.keep(self._report_changes, "kubernetes: reporting changes")
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
        if self._report is None or self._is_outdated:
            self._is_outdated = False
            self._report = self._compile()
        return replace(self._report, queried_at=time.monotonic())

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
                f"jobs of project {project or '(none)'} have no namespace: "
                f'[engines.kubernetes.namespaces] has {", ".join(sorted(known))}; add this project, or "*" '
                "for all others"
            )
        return Owner(account=namespace)

    async def acquire(
        self, name: AllocationName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Allocation:
        (need,) = needs
        self._needs[name] = need
        self._own.released.discard(name)
        self._own.forget_end(name)
        self._awaited.add(name)
        try:
            pod = await self._running_pod(name, need, avoid=avoid)
        except BaseException:
            if self._is_detached:
                raise  # Keep the Pod, so that the next service process can use it.
            # Release the allocation even if no Pod is known: a request that was already sent to the API may
            # still create a Pod.
            withdrawing = begin(self._try_release(name), f"kubernetes: withdrawing {name}")
            await asyncio.shield(withdrawing)
            raise
        finally:
            self._awaited.discard(name)
            self._creation_delays.pop(name, None)
            self._mark_changed()
        return Allocation(name, pod.metadata.uid, (pod.spec.node_name,))

    async def start_agent(self, allocation: Allocation, node: str, argv: Sequence[str], stdin: bytes) -> None:
        if tuple(argv) != self._command:
            raise ValueError("all agents of a cluster must be started by the same command")
        pod = self._own.pods.get(allocation.name)
        if pod is None or pod.metadata.uid not in self._own.waiting_uids or pod.is_leaving or pod.is_over:
            # The Pod is not waiting for an agent's startup data: it already had an agent, or an earlier start
            # was interrupted. Replace the Pod.
            need = replace(self._needs[allocation.name], node=node)
            pod = await self._running_pod(allocation.name, need, is_replacement=True)
        self._own.waiting_uids.discard(pod.metadata.uid)
        try:
            is_confirmed = await self._api.attach(_path(pod), manifests.CONTAINER, stdin, DOCUMENT_READ)
        except ApiFailure as failure:
            # Attaching to a container that has just ended fails. Report the container's end, because it
            # explains more than the API's error.
            if failure.status == 404 and await self._ends_within(_EXIT_TIMEOUT, allocation.name):
                raise self._agent_start_error(allocation.name, pod) from failure
            raise ClusterUnavailable(
                f"cannot send the agent's startup data to Pod {pod.metadata.name}: {failure}"
            ) from failure
        if not is_confirmed:
            await self._ends_within(_EXIT_TIMEOUT, allocation.name)
            raise self._agent_start_error(allocation.name, pod)

    async def _ends_within(self, seconds: float, name: AllocationName) -> bool:
        """Wait for at most `seconds` until a Pod has ended. Returns whether it has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wait_for(lambda: True if self._own.has_ended(name) else None)
        return self._own.has_ended(name)

    def _agent_start_error(self, name: AllocationName, pod: Pod) -> ClusterUnavailable:
        """Return the error for a Pod whose process ended instead of becoming an agent. It contains the cause
        of the end."""
        return _ended_early(self._own.end_of(self._own.pods.get(name, pod)))

    async def allocation_end(self, name: AllocationName) -> AllocationEnd | None:
        if name in self._own.ends:
            return self._own.ends[name]
        pod = self._own.pods.get(name)
        if pod is None:
            raise AgentsMayLive(
                f"the Pod of {name} no longer exists, and the service did not observe its end. If it was "
                "deleted by force, its programs may run until the lease ends"
            )
        if pod.is_over:
            return self._own.end_of(pod)
        return AllocationEnd(Cause.AGENT_LOST, f"Pod {pod.metadata.name} does not run")

    async def pending_end(self, name: AllocationName) -> AllocationEnd | None:
        def observed_end() -> AllocationEnd | None:
            pod = self._own.pods.get(name)
            if pod is None:
                return self._own.ends.get(name, _UNOBSERVED_END)
            is_ending = pod.is_leaving or pod.is_over
            return self._own.end_of(pod) if is_ending else None

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EVICTION_TIMEOUT):
                end = await self._wait_for(observed_end)
                return None if end.loss is Cause.AGENT_LOST else end
        return None

    async def require_reachable(self, name: AllocationName) -> None:
        """Do nothing, because the Pod of an allocation ends together with its agent."""

    async def wait_durable(self, names: Collection[AllocationName]) -> tuple[Leftover, ...]:
        # Do not wait: the API has stored every change that it has confirmed, and a Pod ends with its agent.
        return ()

    async def release(self, name: AllocationName) -> None:
        self._own.forget_end(name)
        need = self._needs.pop(name, None)
        pod = self._own.pods.get(name)
        if pod is not None:
            self._own.released.add(name)
        if self._admission is not None and (pod or need):
            where = pod.metadata.namespace if pod else ""
            where = where or (manifests.namespace(need) if need else "")
            self._admission.handle_release(name, where)
        if pod is None:
            return
        await self._delete_finished(name, pod)

    async def _delete_finished(self, name: AllocationName, pod: Pod) -> None:
        """Delete a Pod after its agent has shut down. Raises ClusterUnavailable."""
        if pod.is_running and pod.metadata.uid not in self._own.waiting_uids:
            # The agent has just been shut down. Wait until the Pod has ended, because Kubernetes deletes an
            # ended Pod immediately. The deletion of a running Pod waits for the kubelet, and old kubelets
            # clean up only once a minute.
            await self._ends_within(_EXIT_TIMEOUT, name)
        try:
            await self._delete(pod)
        except ApiFailure as failure:
            raise ClusterUnavailable(f"{name}: {failure}") from failure

    # --- Pods ---

    @property
    def _api(self) -> ApiClient:
        assert self._client is not None, "the cluster was started"
        return self._client

    async def _running_pod(
        self,
        name: AllocationName,
        need: NodeNeed,
        *,
        is_replacement: bool = False,
        avoid: Collection[str] | None = None,
    ) -> Pod:
        """Wait until the allocation's Pod runs, and return the Pod. Creates the Pod if it does not exist.

        Raises ClusterRefused if the Pod can never run, AgentEnded if the Pod ended before it had an agent,
        and ClusterUnavailable for temporary failures.

        Args:
            is_replacement: Delete an existing Pod, and create another one.
            avoid: Nodes to avoid if possible.
        """
        pod, again = self._own.pods.get(name), 0
        if pod is not None and (is_replacement or pod.is_over or pod.is_leaving):
            await self._remove_pod(pod)
            pod, again = None, manifests.predecessor_count(pod) + 1
        if pod is None:
            pod = await self._create_pod(name, need, again, avoid)
        uid, failing_since = pod.metadata.uid, 0.0

        def running_or_none() -> Pod | None:
            nonlocal failing_since
            now = self._own.pods.get(name)
            if now is None or now.metadata.uid != uid:
                end = self._own.ends.get(name)
                raise (_ended_early(end) if end else AgentEnded(f"{name}: its Pod was deleted"))
            if why := states.refusal(now):
                raise ClusterRefused(why)
            if now.is_over or now.is_leaving:
                raise _ended_early(self._own.end_of(now))
            if self._admission is not None and now.spec.node_name and not kueue.is_managed(now):
                raise ClusterRefused(
                    f"Pod {now.key} started without Kueue's admission: enable Kueue's "
                    'integration "pod" for that namespace, or set queue = "trainshed"'
                )
            if now.is_running:
                return now
            if avoid is None or now.spec.node_name:
                self._require_node_up(now.spec.node_name or need.node)
            is_failing = now.waiting is not None and now.waiting.reason in states.RETRIED_REASONS
            if is_failing and not failing_since:
                failing_since = time.monotonic()
            minutes = self._settings.pull_minutes
            if failing_since and time.monotonic() - failing_since > minutes * 60:
                delay = states.delay(now)
                why = delay.message if delay else "its container did not start"
                raise ClusterRefused(
                    f"{why}; Kubernetes has retried for {minutes:g} min, the limit of pull_minutes in "
                    "[engines.kubernetes]"
                )
            return None

        return await self._wait_for(running_or_none)

    def _require_node_up(self, node: str) -> None:
        """Raise ClusterUnavailable if no Pod can start on this node."""
        assert self._nodes is not None
        known = self._nodes.objects.get(node)
        state, cause = node_state(known)[:2] if known else (NodeState.GONE, "the cluster does not list it")
        if state is not NodeState.UP:
            raise ClusterUnavailable(f"Pods cannot start on node {node}: {cause}")

    async def _create_pod(
        self, name: AllocationName, need: NodeNeed, again: int, avoid: Collection[str] | None
    ) -> Pod:
        """Create the allocation's Pod. `again`: number of the allocation's earlier Pods. Raises
        ClusterRefused if Kubernetes rejects the Pod permanently, and ClusterUnavailable for temporary
        failures."""
        wanted = need.machine.accelerator
        accelerator = self._routes.accelerator(wanted) if wanted else None
        if wanted and accelerator is None:
            known = ", ".join(self._routes.accelerators) or "no type"
            raise ClusterRefused(
                f"no node of this cluster has {wanted}: [engines.kubernetes.accelerators] contains {known}; "
                "choose another accelerator, or add this one"
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
        replacement_delay = partial(kueue.replacement_delay, name, need, self._own.pods)
        if self._admission is not None and (delay := replacement_delay()):
            # The attempt already has as many Pods as Kueue allows. Wait until the attempt has fewer Pods.
            self._creation_delays[name] = delay
            self._mark_changed()
            await self._wait_for(lambda: None if replacement_delay() else True)
            self._creation_delays.pop(name, None)
        while True:
            is_new = True
            try:
                pod = await self._api.create(f"/api/v1/namespaces/{where}/pods", manifest, Pod)
            except ApiFailure as failure:
                if failure.status == 409 and failure.reason == "AlreadyExists":
                    pod = await self._existing_pod(where, manifest["metadata"]["name"], name)
                    is_new = False
                elif failure.is_full:
                    self._creation_delays[name] = Delay(
                        WaitReason.CLUSTER,
                        f"namespace {where} admits no more Pods: {failure}",
                        word="ExceededQuota",
                    )
                    self._mark_changed()
                    # The API does not report when a quota has capacity again, so retry.
                    await asyncio.sleep(_QUOTA_RETRY_INTERVAL)
                    continue
                elif failure.is_final:
                    raise ClusterRefused(
                        f"Kubernetes rejects the Pod in namespace {where}: {failure}"
                    ) from failure
                else:
                    raise ClusterUnavailable(f"{name}: {failure}") from failure
            known = self._own.pods.get(name)
            if is_new and (name in self._own.ends or name in self._own.vanished):
                # The watch reported the Pod's end before the API confirmed the Pod's creation. Do not record
                # the Pod again.
                return pod
            if known is None or known.metadata.uid != pod.metadata.uid:
                self._pod_changed(pod, gone=False)
            if is_new:
                # Record that the Pod has no agent yet, even if the watch has already reported that the Pod
                # runs.
                self._own.waiting_uids.add(pod.metadata.uid)
            return pod

    async def _existing_pod(self, where: str, pod_name: str, name: AllocationName) -> Pod:
        """Return the existing Pod with the name `pod_name`. An earlier request created the Pod, but the
        response was lost. Raises ClusterUnavailable if the Pod does not belong to this service."""
        try:
            pod = await self._api.get(f"/api/v1/namespaces/{where}/pods/{pod_name}", Pod)
        except ApiFailure as failure:
            raise ClusterUnavailable(f"{name}: {failure}") from failure
        if manifests.allocation_of(pod, self._service) != name:
            raise ClusterUnavailable(
                f"Pod {pod_name} in namespace {where} does not belong to this service; delete it, or "
                "use a separate namespace for this service"
            )
        return pod

    async def _delete(self, pod: Pod) -> None:
        """Delete a Pod. Raises ApiFailure if the API rejects the request, and ClusterUnavailable if the API
        does not respond."""
        uid = pod.metadata.uid
        if uid in self._own.deleted_uids:
            return  # Do not repeat the request for deletion, because the kubelet needs some time.
        if not pod.is_leaving:
            self._own.deleted_uids.add(uid)
        try:
            await self._api.delete(_path(pod), uid=uid, grace=_DELETE_GRACE)
        except (ApiFailure, ClusterUnavailable):
            self._own.deleted_uids.discard(uid)
            raise

    async def _remove_pod(self, pod: Pod) -> None:
        """Delete a Pod and wait until it has no running containers. Raises ClusterUnavailable if the API does
        not respond or the Pod does not end in time."""
        name = manifests.allocation_of(pod, self._service)
        assert name is not None
        try:
            if not pod.is_leaving:
                await self._delete(pod)
        except ApiFailure as failure:
            raise ClusterUnavailable(f"{name}: {failure}") from failure
        if not await self._ends_within(_DELETE_TIMEOUT, name):
            raise ClusterUnavailable(
                f"Pod {pod.metadata.name} does not end, because its node {pod.spec.node_name} does not "
                "respond"
            )
        if name in self._own.vanished:
            raise ClusterUnavailable(
                f"Pod {pod.metadata.name} was deleted by force; its programs may still run"
            )
        self._own.ends.pop(name, None)

    async def _try_release(self, name: AllocationName) -> None:
        try:
            await self.release(name)
        except ClusterUnavailable as failure:
            log.info("kubernetes: cannot release %s yet: %s", name, failure)

    def _has_any_of(self, group: str) -> bool:
        """Return whether an attempt has allocations, or requests for allocations. `group`: the attempt's name
        in Kueue."""
        live = (
            name for name, pod in self._own.pods.items() if name not in self._own.released and not pod.is_over
        )
        return any(kueue.group(name) == group for name in (*self._needs, *live))

    # --- watches ---

    async def _list_pods(self, client: ApiClient) -> None:
        """List the Pods of the whole cluster and watch them, because other users' Pods also use resources of
        nodes. If the account may not list them, list only the Pods in the namespaces of jobs."""
        # An earlier call may have left Pods in these collections that no longer exist, so clear the
        # collections.
        self._pods.clear()
        self._own.pods.clear()
        self._own.waiting_uids.clear()
        all_pods = WatchedCollection(client, _PODS, Pod, self._pod_changed)
        try:
            await all_pods.list()
        except ApiFailure as failure:
            if failure.status != 403:
                raise
            log.warning("kubernetes: cannot list other Pods (%s): their resources are not counted", failure)
        else:
            self._pods = [all_pods]
            return
        for where in self._namespaces():
            path = f"/api/v1/namespaces/{where}/pods"
            namespace_pods = WatchedCollection(client, path, Pod, self._pod_changed)
            await namespace_pods.list()
            self._pods.append(namespace_pods)

    def _namespaces(self) -> list[str]:
        return sorted(set(self._settings.namespaces.values()) or {"default"})

    def _node_changed(self, node: ClusterNode, *, gone: bool) -> None:
        self._mark_changed()

    def _pod_changed(self, pod: Pod, *, gone: bool) -> None:
        self._own.update(pod, gone=gone)
        self._mark_changed()

    def _mark_changed(self) -> None:
        self._is_outdated = True
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for(self, check: Callable[[], T | None]) -> T:
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
            ghosts={name: pod.spec.node_name for name, pod in self._own.vanished.items()},
            wanted=self._awaited,
        )
        delays = {**report.delays, **self._admission_delays(), **self._creation_delays}
        return replace(report, delays=delays)

    def _admission_delays(self) -> dict[AllocationName, Delay]:
        """Return the delays of pending allocations that Kueue has not admitted yet."""
        if self._admission is None:
            return {}
        waiting = ((name, self._own.pods.get(name)) for name in self._awaited)
        delays = {name: self._admission.delay(name, pod) for name, pod in waiting if pod}
        return {name: delay for name, delay in delays.items() if delay}

    async def _report_changes(self) -> None:
        last: ClusterReport | None = None
        while True:
            changed = self._changed
            report = self.report()
            if last is None or _reported_fields(last) != _reported_fields(report):
                last = report
                self._reader.put_nowait(report)
            await changed.wait()
            await asyncio.sleep(_REPORT_INTERVAL)


def _ended_early(end: AllocationEnd) -> ClusterUnavailable:
    """Return the error for a Pod that ended before its agent connected: AgentEnded if the image or the agent
    may be at fault. If the Pod's node was lost, neither is at fault, and the error is ClusterUnavailable."""
    return (ClusterUnavailable if end.loss is Cause.NODE_FAILED else AgentEnded)(end.why)


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _reported_fields(report: ClusterReport) -> tuple[object, ...]:
    return report.nodes, report.agents, report.delays, report.idle
