"""gsutil over the storage JSON API of a replica's endpoint: standard library only, Python 3.6 and newer.

`urls`, `wildcards`, `naming` and `options` decide and are pure; `storage` speaks to the endpoint; `commands`
holds one module for each command.
"""
