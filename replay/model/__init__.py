"""Model of work and hardware: work, machine, collectives, compute."""
