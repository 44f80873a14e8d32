"""Jobs on this host, restarted by their supervisors."""
