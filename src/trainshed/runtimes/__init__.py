"""Which runtimes exist and how each is built: families, environments, packages on top, container images."""
