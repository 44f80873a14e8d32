"""Loads the agent into a running process, through the interpreter's own queue of pending calls.

All preconditions are checked before the process is touched (target, elf). Then its interpreter is asked to run
payload.py when its main thread next reaches a safe point (inject: gdb, or Python's own sys.remote_exec). Then the
command waits for the result (result).
"""
