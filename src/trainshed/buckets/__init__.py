"""The data plane of gs://, a process of its own: objects, who may reach them, metadata of replicas."""
