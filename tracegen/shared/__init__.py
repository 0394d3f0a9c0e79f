"""What all packages share: errors, files, output, what people see, and how it is drawn."""
