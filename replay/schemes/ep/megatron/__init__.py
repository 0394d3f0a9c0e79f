"""Megatron-LM's token dispatchers, with the experts as it runs them today and as it did."""
