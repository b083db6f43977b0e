"""Our own API, `/trainshed/v1`, in plain JSON: jobs, live logs, progress, nodes, quotas, drills and
secrets."""
