"""A fuzzer of every file, option and server that the commands meet; see README.md."""
