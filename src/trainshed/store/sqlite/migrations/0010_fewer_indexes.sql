-- One index holds every list of what clients made, and one those of what other works made: a list over several
-- locations or kinds is merged from its parts. Each submit wrote into five of them before.
DROP INDEX works_by_collection;
DROP INDEX works_by_kind;
DROP INDEX works_by_location;
DROP INDEX works_by_api;
DROP INDEX works_by_project;

CREATE INDEX works_of_clients ON works (project_id, api, location, kind, uid) WHERE parent_uid = 0;
CREATE INDEX works_of_works ON works (project_id, api, location, kind, uid) WHERE parent_uid <> 0;

-- A uid begins with the millisecond in which it was made (41 bits). Only works of another time need an index.
DROP INDEX works_by_creation;
CREATE INDEX works_of_another_time ON works (created) WHERE abs((uid >> 22) - created / 1000000) > 1000;

-- The id of a Vertex job is its uid; here are those that somebody chose.
DROP INDEX jobs_by_job_id;
CREATE INDEX job_names_chosen ON job_names (job_id, uid) WHERE job_id <> CAST(uid AS TEXT);
