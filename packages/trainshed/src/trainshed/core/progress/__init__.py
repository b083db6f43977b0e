"""How far a program is and how long it will still run, as far as its output tells. Pure."""
