"""Authentication and authorization: principals, tokens, roles and permissions. Seals and redacts secrets."""
