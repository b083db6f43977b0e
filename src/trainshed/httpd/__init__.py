"""Serves HTTP: limits, TLS, the hosts that may call, the router, requests and responses."""

from trainshed.loading.packages import sparsely

# uvicorn's command line, and its supervisors of several processes, cost 8 ms of a start and 0.5 MB.
sparsely("uvicorn", {"Config": "uvicorn.config"})
