-- Persistent resources are not served: they reserved nothing.
DROP TABLE persistent_resources;
