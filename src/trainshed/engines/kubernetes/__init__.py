"""Replicas as Pods of a Kubernetes cluster: one Pod for each, in which an agent of `engines.remote` runs."""
