"""Builds the pages of the console: a function per page returns its view, one per form performs its action."""
