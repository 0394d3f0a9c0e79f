"""What all experiments share."""
