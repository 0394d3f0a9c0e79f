"""From a schedule to a result; everything here is derived."""
