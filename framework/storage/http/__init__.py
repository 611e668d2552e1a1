"""The requests of a store over HTTP: one thread, streams that notice what is cut, and a store on top of both."""
