"""Serves gs:// in a separate process: objects, access to them, and the metadata server of replicas."""
