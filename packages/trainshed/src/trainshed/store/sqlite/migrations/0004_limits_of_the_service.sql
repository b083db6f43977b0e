-- `most`: the limit that an owner of the service set, which owners of the project cannot exceed; NULL = none was
-- set. Who set the existing limits is not known: they count as set by the service's owner.
ALTER TABLE quotas ADD COLUMN most REAL;
UPDATE quotas SET most = ceiling;
