"""An agent for a process that already runs: asked in by the interpreter's own queue of pending calls.

Everything that can speak against it is found out before the process is touched (target, permission, elf); then its
interpreter is asked to run `payload.py` when its main thread next comes to a safe point (in_gdb, or Python's own
sys.remote_exec); then the answer is awaited (answer).
"""
