"""Many simulated ranks in one process, with an endpoint per job: for load tests and demonstrations.

Every rank replays a trace that was recorded on a GPU, on the simulated allocator. The replay is computed once; ranks
differ in their position.
"""
