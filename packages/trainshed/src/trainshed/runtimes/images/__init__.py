"""Finds, pulls and exports container images by podman or docker, and unpacks each once. Trainshed runs
them."""
