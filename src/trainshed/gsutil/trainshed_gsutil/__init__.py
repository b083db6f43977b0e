"""A gsutil over the storage JSON API of a replica's endpoint: standard library only, Python 3.6 and newer.

`urls`, `naming`, `options` and `describing` are pure; `storage` talks to the endpoint; `commands`
holds one module for each command.
"""
