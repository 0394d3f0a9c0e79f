"""The modelled system as a scheme sees it: bytes become picoseconds here and nowhere else."""
