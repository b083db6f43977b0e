"""Filters of list methods: parses their text to a tree, and compiles the tree to a predicate. Pure."""
