"""Compiled pipelines: reads and checks the intermediate representation (IR) of the KFP compiler. Pure."""
