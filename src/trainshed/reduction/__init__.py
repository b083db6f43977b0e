"""The Reduction Server: reducer, client and PyTorch plug-in, as a small distribution of its own.

What jobs import is the package `trainshed_reduction` in this folder, which knows nothing of the service; the
service puts it in front of a worker's own packages, and images of users install it.
"""
