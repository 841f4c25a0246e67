"""More than one machine, on Ray: encoding by a pool of workers, and search over shards that other machines hold.

front.py is a retriever whose rows lie elsewhere, and knows no Ray; fleet.py asks the shards on Ray Serve; encoding.py
is an encoder whose work is done by Ray's actors; rays.py connects. The command line calls them (`bpr index --ray`,
`bpr serve --ray`). What travels between processes is arrays, strings and numbers. The only importer of ray.
"""
