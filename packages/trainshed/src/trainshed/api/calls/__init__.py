"""Modules that all API surfaces use: the caller, services, errors, pages, and HTTP messages."""
