"""The command `demo` of a store's source: real flights from a local server into an embedded Iggy.

data     the flights as objects in four formats
store    a store's part: a server, files uploaded into a bucket, a section of the configuration
result   the checks and messages at the end
run      the command
"""
