"""Finds, pulls and exports container images by podman or docker, and unpacks them once; we run them."""
