"""Jobs in Kubernetes, restarted through the API server."""
