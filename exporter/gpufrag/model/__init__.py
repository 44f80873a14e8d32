"""The pure model: standard library only; no clock, no file, no thread, no torch."""
