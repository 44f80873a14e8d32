"""What every HTTP server of gpufrag shares, and the client for all HTTP requests.

runner       run an application until a signal ends it
connections  accept connections and bound their number
limits       bounds on the time and size of a request, and on requests at once
auth         passwords and bearer tokens
config       the web config file, in the format that Prometheus exporters share
listen       listen addresses and sockets
asgi         routes, headers, short answers
executor     blocking work off the event loop
html         the look of the pages
client       requests to other servers
"""
