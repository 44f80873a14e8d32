"""What crosses processes: samples, OOM reports, the shared folder, the JSON codec and control sockets."""
