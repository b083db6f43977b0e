"""How a node that shares no files with the service gets what programs and agents need: environments,
interpreters, images, and the agent's own code (docs/adr/0063).
"""
