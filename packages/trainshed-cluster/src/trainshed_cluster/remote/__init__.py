"""The base of engines whose replicas run on other machines: an agent on each node of an attempt runs a local
engine there and is connected to the service. `cluster.Cluster` hides the differences between clusters."""
