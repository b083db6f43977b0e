"""Builds the pages of the console. Each page has a function that returns its view, and each form a function
that performs its action."""
