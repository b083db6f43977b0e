"""Decides who may do what: principals, tokens, roles and the permission table. Seals and redacts secrets."""
