"""gRPC over the registry of handlers. Imported with the first connection only: it costs an idle service 13
MB."""
