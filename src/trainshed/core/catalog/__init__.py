"""The public tables: machine types, tiers, accelerators, runtime and image names, regions."""
