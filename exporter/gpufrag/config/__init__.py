"""Configuration files: typed records read from YAML."""
