"""The Kubernetes engine runs each replica in a Pod of its own, in which an agent (`remote`) runs."""
