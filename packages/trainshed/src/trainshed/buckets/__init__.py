"""Serves gs:// in a process of its own: objects, access to them, and the metadata endpoint of replicas."""
