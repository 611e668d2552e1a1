"""Broken listings: the laws L1 to L6."""

import unicodedata
from urllib.parse import unquote

import attrs

from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.objects import TopicPartition
from framework.store import ListPage
from framework.testing.fakes.memory_rig import MemoryRig
from framework.testing.fakes.memory_store import MemoryStore
from tests.conformance.broken.rigs import WithIterator


class WithStore(MemoryRig):
    """A rig whose store is another one."""

    def __init__(self):
        super().__init__()
        self.store = self.Store()


class FirstPageOnly(MemoryRig):
    """L1: a listing from the start asks for the first page and never follows it."""

    class Store(MemoryStore):
        def list_page(self, **arguments):
            page = super().list_page(**arguments)
            return page if arguments.get("after") else ListPage(objects=page.objects)

    def __init__(self):
        super().__init__()
        self.store = self.Store()


class IgnoresThePageSize(WithStore):
    """L1: a page has as many objects as the store likes."""

    class Store(MemoryStore):
        def list_page(self, *, page_size=1000, **arguments):
            return super().list_page(page_size=page_size + 1, **arguments)


class NamesAnotherBucket(WithStore):
    """L1: objects have the name of another bucket, so no watermark replaces their positions."""

    class Store(MemoryStore):
        def list_page(self, **arguments):
            page = super().list_page(**arguments)
            return attrs.evolve(page, objects=[attrs.evolve(native, bucket="Lake") for native in page.objects])


class GreaterOrEqual(WithIterator):
    """L2: a listing after k shows k again."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def get_native_item_stream(self, offset):
            for native in super().get_native_item_stream(None):
                if offset is None or native.key.encode() >= offset.encode():
                    yield native


class PartitionByPlaceInListing(WithIterator):
    """L6: the partitions are dealt out in the order of the listing, so an object changes partitions when another one goes."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def create_feed(self):
            feed = super().create_feed()
            selection, partitions = feed._objects._selection, self.config.iggy.partitions

            class Dealing:
                def begin_listing(self):
                    self.dealt = -1
                    selection.begin_listing()

                def partition_for(self, native, *, started=False):
                    topic_partition = selection.partition_for(native, started=started)
                    self.dealt += 1
                    return (
                        None
                        if topic_partition is None
                        else TopicPartition(topic_partition.topic, self.dealt % partitions)
                    )

                def filtered(self):
                    return selection.filtered()

            feed._objects._selection = Dealing()
            return feed


class AfterMustExist(WithIterator):
    """L2: to go on behind a key, it is looked for; one that is not there is taken for the beginning."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def get_native_item_stream(self, offset):
            natives = list(super().get_native_item_stream(None))
            keys = [native.key for native in natives]
            yield from natives[keys.index(offset) + 1 if offset in keys else 0 :]


class BeginsAtTheFirstKey(WithStore):
    """L2: a page has no start key; listings go around that, only mode `incremental` cannot."""

    class Store(MemoryStore):
        def list_page(self, *, after="", **arguments):
            return super().list_page(**arguments)


def _utf16(key):
    return key.encode("utf-16-be", "surrogatepass")


class OrderOfUtf16(WithStore):
    """L4: the store says that it lists in order, and its order is that of Java's strings."""

    class Store(MemoryStore):
        def list_page(self, *, prefix="", after="", continuation=None, page_size=1000):
            self._call("list_page", prefix)
            begin = _utf16(continuation or after)
            keys = sorted((key for key in self._objects if key.startswith(prefix) and _utf16(key) > begin), key=_utf16)
            objects = [self._native(key, self._objects[key]) for key in keys]
            more = objects[page_size - 1].key if len(objects) > page_size else None
            page = ListPage(objects=objects[:page_size], continuation=more)
            return page if self.change_page is None else self.change_page(page)


class FoldersForPrefixes(WithStore):
    """L3: the slash at the end of a prefix is taken off, and its neighbours come in."""

    class Store(MemoryStore):
        def list_page(self, *, prefix="", **arguments):
            return super().list_page(prefix=prefix.rstrip("/"), **arguments)


class PrefixesForFolders(WithStore):
    """L3: a slash is put behind a prefix, and what goes on in the same name is never listed."""

    class Store(MemoryStore):
        def list_page(self, *, prefix="", **arguments):
            return super().list_page(prefix=prefix and prefix.rstrip("/") + "/", **arguments)


class PrefixOnTheFirstPageOnly(WithStore):
    """L3: the second page is asked for without the prefix, and the rest of the bucket comes."""

    class Store(MemoryStore):
        def list_page(self, *, prefix="", after="", continuation=None, page_size=1000):
            later = after or continuation
            return super().list_page(
                prefix="" if later else prefix, after=after, continuation=continuation, page_size=page_size
            )


class MarksAreData(WithIterator):
    """L3: a folder mark is handed out to be read, as if it were data."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def create_feed(self):
            feed = super().create_feed()
            partition_for, topic = feed._objects._selection.partition_for, self.config.iggy.topic
            feed._objects._selection.partition_for = lambda native, *, started=False: (
                TopicPartition(topic, 0) if native.size == 0 else partition_for(native, started=started)
            )
            return feed


class WithKeys(WithIterator):
    """A rig whose listing shows other keys than the store has."""

    @staticmethod
    def changed(key):
        return key

    def __init__(self):
        changed = self.changed

        class Changing(StoreRecordIterator):
            def get_native_item_stream(self, offset):
                for native in super().get_native_item_stream(offset):
                    yield attrs.evolve(native, key=changed(native.key))

        self.iterator_class = Changing
        super().__init__()


class StatKnowsNoEnd(WithStore):
    """L4: asked for a key, the store shows the first key that begins like it."""

    class Store(MemoryStore):
        def stat(self, key):
            return next(self.list_all(prefix=key[:1]))


class DecodesTwice(WithKeys):
    """L4: a key that came decoded is decoded again."""

    changed = staticmethod(unquote)


class Normalises(WithKeys):
    """L4: a key goes through a normal form, and is another one then."""

    @staticmethod
    def changed(key):
        return unicodedata.normalize("NFC", key)


class CutsLongKeys(WithKeys):
    """L4: a key is cut to what fits into a field."""

    @staticmethod
    def changed(key):
        return key.encode()[:255].decode("utf-8", "ignore")


class FollowsPagesForEver(WithIterator):
    """L5: every page is followed to the next one, wherever that leads."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def get_native_item_stream(self, offset):
            place = None
            for prefix in self.prefixes:
                while not self.closing.is_set():
                    page = self.store.list_page(
                        prefix=prefix, after=offset or "", continuation=place, page_size=self.page_size
                    )
                    yield from page.objects
                    place = page.continuation
                    if place is None:
                        break


class StopsWhereItStands(WithIterator):
    """L5: a page that brings nothing new ends the listing, as if that were all."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def get_native_item_stream(self, offset):
            try:
                yield from super().get_native_item_stream(offset)
            except Exception:  # noqa: BLE001
                return
