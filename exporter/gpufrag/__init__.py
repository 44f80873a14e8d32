"""gpufrag: why a GPU with free memory still runs out of it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
