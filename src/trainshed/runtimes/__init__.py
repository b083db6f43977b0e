"""Which runtimes exist and how each is built: families, environment cache, packages layered on top, container
images."""
