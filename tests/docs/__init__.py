"""The documentation as its readers meet it: the site, and what its commands do."""
