"""Decides who may do what: principals, tokens, roles, the one permission table; seals and redacts secrets."""
