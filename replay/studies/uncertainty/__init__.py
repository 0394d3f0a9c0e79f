"""How sure a comparison is: replays on machines, with errors of the model and routing, drawn."""
