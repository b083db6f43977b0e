"""Requests and responses of the API `/trainshed/v1`, as typed records for the service and its clients."""
