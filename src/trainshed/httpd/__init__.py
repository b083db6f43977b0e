"""How HTTP reaches handlers: limits, TLS and hosts that may call; the router, requests and answers."""

from trainshed.loading.packages import sparsely

# Its command line, and what reloads programs and starts several, are 8 ms of a start and 0.5 MB of a process.
sparsely("uvicorn", {"Config": "uvicorn.config"})
