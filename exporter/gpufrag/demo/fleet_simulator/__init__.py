"""Many simulated ranks in one process, each job behind an endpoint of its own: for load tests and demonstrations.

The figures are not made up: every rank walks through a trace that was recorded on a GPU, replayed on the simulated
allocator. The walk is made once; ranks differ in where they are.
"""
