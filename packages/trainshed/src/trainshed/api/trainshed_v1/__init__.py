"""Our own API, `/trainshed/v1`, in plain JSON: jobs, live logs, progress, nodes, quotas, secrets and drills
(faults that users inject)."""
