"""Engines whose replicas run on other machines: an agent on each node of an attempt holds the local engine
there, and is connected to the service. What differs from cluster to cluster is behind `cluster.Cluster`."""
