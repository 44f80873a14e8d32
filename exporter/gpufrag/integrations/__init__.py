"""Checkpoint callbacks for training frameworks; each module imports only the framework in its name."""
