"""What API calls share across surfaces: the caller, services, errors, pages, HTTP messages."""
