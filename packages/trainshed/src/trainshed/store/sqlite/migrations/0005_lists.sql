-- For the numbers of jobs by state that a list shows.
CREATE INDEX works_of_clients_by_state ON works (state, project_id) WHERE parent_uid = 0;
