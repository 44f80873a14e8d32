"""Callbacks for training frameworks, for checkpoints and metrics; a module imports only the framework in its name."""
