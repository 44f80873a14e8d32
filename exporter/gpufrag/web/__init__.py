"""What every HTTP server of gpufrag shares: limits, TLS, basic auth, draining and reloading.

config    the web config file, in the form that Prometheus exporters share
auth      basic auth for an ASGI app
bearer    tokens from a file, for programs
limits    bounds on a connection's time and size, and on requests in work
routes    routes as an ASGI app
worker    blocking work off the event loop, in a thread that an exit need not wait for
runner    run an app until a signal ends it
"""
