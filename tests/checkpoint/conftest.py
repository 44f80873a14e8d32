"""The agent's fixtures for real processes."""

from agent.conftest import eventually, folder, scripts

__all__ = ["eventually", "folder", "scripts"]
