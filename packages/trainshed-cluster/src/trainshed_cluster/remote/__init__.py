"""The base of engines whose replicas run on other machines. On each node of an attempt, an agent runs a local
engine and is connected to the service. `cluster.Cluster` hides the differences between clusters."""
