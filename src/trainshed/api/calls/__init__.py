"""What each call of any surface works with: the caller, the services, errors, pages, HTTP messages."""
