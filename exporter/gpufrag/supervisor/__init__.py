"""A job that can be started again: the parent that `gpufrag run --restartable` stays."""
