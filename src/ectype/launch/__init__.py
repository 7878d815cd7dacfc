"""A run as jobs on this machine, a cluster or Slurm, and the supervisor that restarts them until the run is done."""
