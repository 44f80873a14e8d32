"""Checkpoint callbacks for training frameworks, each of which is imported only by the module that is named after it."""
