"""The Kubernetes engine: each replica runs in its own Pod, together with its agent (`remote`)."""
