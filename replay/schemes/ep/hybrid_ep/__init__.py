"""HybridEP: chunks of tokens through shared memory, pushed out and pulled back."""
