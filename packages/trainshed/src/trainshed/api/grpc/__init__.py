"""gRPC over the registry of handlers. Imported with the first connection only, since it costs 13 MB."""
