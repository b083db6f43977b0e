"""Defines requests and answers of our API, `/trainshed/v1`, as typed records for service and clients."""
