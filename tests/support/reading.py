"""Reading through a store, in few words."""


def read(store, native, start=0, end=None, size=65_521):
    """All bytes of an object, or of a part of it."""
    stream = store.open(native, start, end)
    data = drain(stream, size)
    stream.close()
    return data


def drain(stream, size=50_000):
    """What is left of a stream."""
    parts = []
    while data := stream.read(size):
        parts.append(data)
    return b"".join(parts)


def only(store, prefix=""):
    """The one object that there is."""
    (native,) = store.list_all(prefix=prefix)
    return native


def warm(bucket, store):
    """Opens one object, so that the next one goes the short way."""
    bucket.put("zz-warm", b"warm")
    assert read(store, only(store, "zz-warm")) == b"warm"
