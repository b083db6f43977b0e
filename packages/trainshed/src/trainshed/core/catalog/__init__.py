"""The public tables: machine types, tiers, accelerators, runtimes, images, regions and quotas."""
