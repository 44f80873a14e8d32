"""How the ranks of one job agree on the step at which all of them save. Pure: no clock, socket or thread of its own.

    prepare   each rank tells its step, how long a step takes, and whether it can save
    at        each promises to stop at one step, which is ahead of all; a rank that has passed it says so
    confirm   all save there. Sent only when all have promised: saving is collective, and one rank alone would hang
    status    until all have saved, or one has failed
    release   all leave: `exit` tells them to end, otherwise they train on
    cancel    before `confirm`: promises are void

A rank that comes to its step before it is told to confirm or to cancel waits there, so that word which arrives late
finds it where it has promised to be. Only that makes the agreement safe; how far ahead the step lies merely decides
how rarely somebody waits.
"""
