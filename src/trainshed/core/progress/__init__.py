"""How far a program is and how long it will still take, as far as its lines say so. Pure."""
