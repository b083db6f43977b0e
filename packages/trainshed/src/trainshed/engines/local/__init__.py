"""Runs replicas on this machine, each in a slot (a directory, an address and devices). Each replica has one
shim, which is forked from a zygote and isolated as far as the host allows."""
