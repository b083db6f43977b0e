"""Requests and answers of our own API, `/trainshed/v1`, as typed records that the service and its clients
share."""
