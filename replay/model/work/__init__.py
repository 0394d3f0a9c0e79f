"""The work of a layer, counted from routing: no time, no hardware."""
