"""What there is to do, and what hardware does: work, machine, collectives, compute."""
