"""Builds the document with which a shim starts a program, from launch plan, slot and machine. Used by all
engines that run Trainshed's shim."""
