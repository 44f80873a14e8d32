"""What crosses processes: samples, OOM reports, the shared folder, the JSON codec and the control socket."""
