"""The gs:// server in its own process: objects, access control, and the metadata server of replicas."""
