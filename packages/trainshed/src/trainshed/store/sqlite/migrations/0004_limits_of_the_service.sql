-- `most`: the limit of the service's owner, which owners of the project cannot exceed; NULL = no limit. It is unknown who set
-- the existing limits; they count as limits of the service's owner.
ALTER TABLE quotas ADD COLUMN most REAL;
UPDATE quotas SET most = ceiling;
