"""Who may do what: principals, tokens, roles, the one permission table; sealing and redaction of secrets."""
