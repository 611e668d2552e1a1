"""The judge: random histories of the real code over a simulated Iggy and a simulated bucket, and a checker that knows neither.

python -m tests.simulator --histories 1000 --seed 0     # many
python -m tests.simulator --one 4711 -v                 # one, told event by event
python -m tests.simulator --theme mixed --pairs 5       # which kinds of events met in fewer than five of them

runtime     greenlets in place of threads and processes, one clock, one random order: the same seed, the same history
iggy        the server: what it stores, forgets, and whom it still lists
bucket      the store: versions, faults, and everything that ever was in it
key_lists   the list of keys that names what is read, where it is not the bucket that does
neighbour   a second source in the same stream
operator    people who purge, delete and divide topics while the source runs, and what must come of it
history     what people, machines and networks do to them
coverage    which kinds of events and properties there are, and which have met
meetings    events that come soon after each other
checker     what must hold of what lies in the partitions; knows the bucket's history and nothing of the framework
adapter     the one place that knows the framework
"""
