"""Gives nodes that share no files with the service what programs and agents need: environments, interpreters,
images, and the agent's own code (docs/adr/0063).
"""
