"""Requests that arrive at a rate or as a file says, served by a whole model.

>>> from replay.experiments.serve.arrivals.experiment import EXPERIMENT
>>> result = EXPERIMENT.run(
...     model="olmoe-1b-7b", decode_gpus=2, requests=4, prompt=32, output=2, chunk=64,
...     sample_layers=1, tolerance=1.0, arrivals="once", count=2,
... )
>>> result.served.requests, result.served.output_tokens
(2, 6)
"""
