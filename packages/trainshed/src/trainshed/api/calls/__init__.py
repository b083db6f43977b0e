"""Common parts of all API surfaces: the caller, services, errors, pages, HTTP messages."""
