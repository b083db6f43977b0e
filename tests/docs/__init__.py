"""Tests of the documentation: the site and the commands in its pages."""
