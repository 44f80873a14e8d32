"""Configuration: settings declared as annotated dataclasses, read from YAML and flags.

schema     how a setting declares its type, range, flag and documentation
reader     read a YAML file and flags into such a dataclass; one line per error
reference  command-line flags and reference documentation from the same declarations
sidecar    the settings of `gpufrag serve`, and those that its servers share with the restarter
"""
