"""Work shared by processes and machines, and a folder of what is finished.

`worker` is what one does, `crew` and `clusters` those who do it, `hiring` finds them, `work` hands
it out, `leases` says who works on what in a folder, `store` is the folder, `shards` are shares for
jobs that know nothing of each other.
"""
