"""A worker: many sources in one process tree, each in a process of its own, and the HTTP API over them.

folder      configuration files -> configurations, and their changes
state       configuration versions and the states that a restart keeps
channel     the line between the worker and a source: figures and errors up, `stop` down
children    the processes of the sources
supervisor  starts, stops and restarts them
api         the HTTP API; `answers` are its documents, `server` its port
"""
