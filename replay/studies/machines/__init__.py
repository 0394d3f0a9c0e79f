"""The reader's own machine: measured, or fitted to logs of programs that people have anyway."""
