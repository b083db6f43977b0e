"""Container images: found, pulled and exported by podman or docker, unpacked once, run by ourselves."""
