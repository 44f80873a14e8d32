"""Slurm jobs, restarted by scontrol requeue."""
