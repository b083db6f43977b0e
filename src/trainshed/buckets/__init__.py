"""Serves gs:// in a process of its own: objects, who may reach them, and the metadata endpoint of
replicas."""
