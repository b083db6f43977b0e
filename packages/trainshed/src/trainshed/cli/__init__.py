"""The `trainshed` command: subcommands that call the public API, and the packaging of users' programs."""
