"""The command `demo` of a store's source: real flights from a local server into an embedded Iggy, end to end.

data     the flights as objects in four formats
store    what a store has to supply: a server, files put into a bucket, a section of the configuration
result   what is looked at and said at the end
run      the command
"""
