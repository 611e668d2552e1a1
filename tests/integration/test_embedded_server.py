"""What the embedded server and the real one have in common; IGGY_TEST_URL names a real one to run this on."""

import asyncio
import datetime as dt
import itertools
import struct

import pytest
from apache_iggy import (
    AutoLogin,
    Durability,
    HeaderKey,
    HeaderValue,
    IggyExpiry,
    MaxTopicSize,
    Partitioning,
    PollingStrategy,
    SendMessage,
)

from tests.integration.iggy_rig import (
    READER,
    address_of,
    connect,
    connect_with_topic,
    eventually,
    poll,
    poll_messages,
    run,
    send,
    send_body,
)
from tests.support.iggy_batches import encode_batch
from tests.support.keys import partition_of_key

pytestmark = pytest.mark.real_iggy


def numbered(start, stop):
    return [(offset, f"m{offset}") for offset in range(start, stop)]


def texts(start, stop):
    return [f"m{number}" for number in range(start, stop)]


def test_the_version_is_0_9(iggy_url):
    async def work():
        client = await connect(iggy_url)
        await client.ping()
        stats = await client.get_stats()
        assert stats.iggy_server_version.startswith("0.9.")
        assert stats.process_id > 0
        assert stats.clients_count >= 1

    run(work())


@pytest.mark.parametrize(("user", "password"), [("iggy", "wrong"), ("nobody", "iggy")])
def test_wrong_credentials_are_refused_as_such(iggy_url, user, password):
    async def work():
        with pytest.raises(RuntimeError, match="Invalid credentials"):
            await connect(iggy_url, login=AutoLogin.username_password(user, password))

    run(work())


def test_a_token_that_is_not_known_is_refused_as_such(iggy_url):
    async def work():
        with pytest.raises(RuntimeError, match="Invalid personal access token"):
            await connect(iggy_url, login=AutoLogin.personal_access_token("x" * 30))

    run(work())


def test_without_a_login_only_a_ping_is_answered(iggy_url):
    async def work():
        client = await connect(iggy_url, login=AutoLogin.disabled())
        await client.ping()
        with pytest.raises(RuntimeError, match="Unauthenticated"):
            await client.get_streams()

    run(work())


def test_after_a_logout_nothing_else_is_answered(iggy_url):
    async def work():
        client = await connect(iggy_url)
        await client.logout_user()
        with pytest.raises(RuntimeError, match="Unauthenticated"):
            await client.get_streams()

    run(work())


def test_streams_are_made_shown_renamed_and_deleted(iggy_url, stream_name):
    async def work():
        client = await connect(iggy_url)
        assert await client.get_stream(stream_name) is None
        await client.create_stream(stream_name)
        with pytest.raises(RuntimeError, match="already exists"):
            await client.create_stream(stream_name)
        stream = await client.get_stream(stream_name)
        assert (stream.name, stream.topics_count, stream.messages_count) == (stream_name, 0, 0)
        assert (stream.id, stream_name) in [(s.id, s.name) for s in await client.get_streams()]
        other = stream_name[:-3] + "new"
        await client.update_stream(stream_name, other)
        assert await client.get_stream(stream_name) is None
        assert (await client.get_stream(other)).id == stream.id
        await client.delete_stream(other)
        assert await client.get_stream(other) is None
        with pytest.raises(RuntimeError, match="was not found"):
            await client.delete_stream(other)

    run(work())


def test_topics_show_their_options_and_those_derived(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(
            iggy_url,
            stream_name,
            3,
            durability=Durability.PERSISTED,
            messages_required_to_save=1,
            segment_size=1 << 20,
            message_expiry=IggyExpiry.ExpireDuration(dt.timedelta(days=1)),
            max_topic_size=MaxTopicSize.Unlimited(),
        )
        topic = await client.get_topic(stream_name, "t")
        given, derived = topic.options.to_scalar_dict(), topic.derived_options.to_scalar_dict()
        assert (given["messages_required_to_save"], given["segment_size"]) == (1, 1 << 20)
        assert given["message_expiry"] == 86400 * 10**6
        assert derived["size_of_messages_required_to_save"] == 1 << 20
        assert derived["compression_algorithm"] == "none"
        assert not set(given) & set(derived)
        assert isinstance(topic.max_topic_size, MaxTopicSize.Unlimited)
        assert isinstance(topic.message_expiry, IggyExpiry.ExpireDuration)
        assert [(p.id, p.current_offset, p.messages_count) for p in topic.partitions] == [(p, 0, 0) for p in range(3)]

    run(work())


def test_topics_are_made_listed_changed_and_deleted(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name)
        with pytest.raises(RuntimeError, match="already exists"):
            await client.create_topic(stream_name, "t", 1)
        await client.create_topic(stream_name, "other", 2)
        assert [(t.id, t.name) for t in await client.get_topics(stream_name)] == [(0, "t"), (1, "other")]
        assert await client.get_topics("no-such-stream") == []
        assert await client.get_topic(stream_name, "no-such-topic") is None
        await client.update_topic(stream_name, "t", "renamed", max_topic_size=MaxTopicSize.Unlimited())
        assert await client.get_topic(stream_name, "t") is None
        assert (await client.get_topic(stream_name, "renamed")).id == 0
        await client.delete_topic(stream_name, "renamed")
        assert [t.name for t in (await client.get_stream(stream_name)).topics] == ["other"]
        with pytest.raises(RuntimeError, match="was not found"):
            await client.delete_topic(stream_name, "renamed")
        with pytest.raises(RuntimeError, match="was not found"):
            await client.create_topic("no-such-stream", "t", 1)

    run(work())


@pytest.mark.parametrize("options", [{"segment_size": 1000}, {"options": {"no_such_option": "1"}}])
def test_bad_topic_options_are_refused(iggy_url, stream_name, options):
    async def work():
        client = await connect(iggy_url)
        await client.create_stream(stream_name)
        with pytest.raises(RuntimeError, match="option"):
            await client.create_topic(stream_name, "t", 1, **options)
        assert await client.get_topic(stream_name, "t") is None

    run(work())


def test_partitions_are_added_and_removed_at_the_end(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name, 2)

        async def has(partitions):
            return [p.id for p in (await client.get_topic(stream_name, "t")).partitions] == list(range(partitions))

        await client.create_partitions(stream_name, "t", 3)
        await eventually(lambda: has(5))
        await send(client, stream_name, ["m0"], partition=1)
        await client.delete_partitions(stream_name, "t", 3)
        await eventually(lambda: has(2))
        assert await poll(client, stream_name, partition=1) == numbered(0, 1)
        with pytest.raises(RuntimeError):
            await client.delete_partitions(stream_name, "t", 99)

    run(work())


def test_messages_keep_ids_headers_payloads_and_order(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name)
        headers = {
            HeaderKey.String("text"): HeaderValue.String("käse"),
            HeaderKey.Raw(b"\xff"): HeaderValue.UnsignedInt64(2**60),
        }
        sent = [SendMessage(b"\x00\xff" * (i + 1), user_headers=headers, id=2**100 + i) for i in range(7)]
        assert (await client.send_messages(stream_name, "t", 0, sent)).confirmations[0].base_offset == 0
        assert (await client.send_messages(stream_name, "t", 0, sent)).confirmations[0].base_offset == 7
        found = await poll_messages(client, stream_name)
        assert [m.offset() for m in found] == list(range(14))
        assert [m.id() for m in found] == 2 * [2**100 + i for i in range(7)]
        assert [m.payload() for m in found] == 2 * [b"\x00\xff" * (i + 1) for i in range(7)]
        assert dict(found[3].user_headers()) == headers
        assert found[0].timestamp() <= found[13].timestamp()

    run(work())


def test_a_confirmation_names_where_the_messages_went(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name, 3)
        await send(client, stream_name, texts(0, 5), partition=2)
        response = await client.send_messages(stream_name, "t", 2, [SendMessage("m5")])
        (confirmed,) = response.confirmations
        stream = await client.get_stream(stream_name)
        assert (confirmed.stream_id, confirmed.topic_id) == (stream.id, 0)
        assert (confirmed.partition_id, confirmed.base_offset) == (2, 5)
        assert await poll(client, stream_name, partition=2) == numbered(0, 6)
        assert await poll(client, stream_name, partition=0) == []

    run(work())


def test_balanced_and_keyed_batches_each_go_to_one_partition(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name, 3)
        batch = [SendMessage(text) for text in texts(0, 2)]
        used = [
            (await client.send_messages(stream_name, "t", partitioning, batch)).confirmations[0].partition_id
            for partitioning in (*[Partitioning.balanced()] * 3, *[Partitioning.messages_key(b"k")] * 3)
        ]
        assert set(used[:3]) == {0, 1, 2}
        assert len(set(used[3:])) == 1

    run(work())


def test_a_message_with_a_key_goes_where_partition_by_sends_a_record_of_that_key(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name, 7)
        for key in ("a", "ann", "17", "true", "\u00e9", "long " * 20):
            partitioning = Partitioning.messages_key(key.encode())
            stored = (await client.send_messages(stream_name, "t", partitioning, [SendMessage("m")])).confirmations[0]
            assert stored.partition_id == partition_of_key(key, 7), key

    run(work())


def test_polls_by_offset_cut_batches_anywhere(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name)
        borders = [0, 3, 10, 11, 16]
        for start, stop in itertools.pairwise(borders):
            await send(client, stream_name, texts(start, stop))
        for start in range(18):
            for count in (1, 2, 5, 20):
                window = numbered(start, max(start, min(start + count, 16)))
                assert await poll(client, stream_name, PollingStrategy.Offset(start), count=count) == window

    run(work())


def test_polls_from_first_last_next_and_time(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name)
        assert await poll(client, stream_name, PollingStrategy.Last(), count=5) == []
        await send(client, stream_name, texts(0, 7))
        await send(client, stream_name, texts(7, 12))
        assert await poll(client, stream_name, PollingStrategy.First(), count=3) == numbered(0, 3)
        assert await poll(client, stream_name, PollingStrategy.Last(), count=6) == numbered(6, 12)
        assert await poll(client, stream_name, PollingStrategy.Next(), count=2) == numbered(0, 2)
        assert await poll(client, stream_name, PollingStrategy.Next(), count=2, auto_commit=True) == numbered(0, 2)
        assert await poll(client, stream_name, PollingStrategy.Next(), count=6, auto_commit=True) == numbered(2, 8)
        assert await poll(client, stream_name, PollingStrategy.Next(), count=6, consumer=2) == numbered(0, 6)
        stored = [m.timestamp() for m in await poll_messages(client, stream_name)]
        assert await poll(client, stream_name, PollingStrategy.Timestamp(0), count=2) == numbered(0, 2)
        assert await poll(client, stream_name, PollingStrategy.Timestamp(stored[7]), count=2) == numbered(7, 9)
        assert await poll(client, stream_name, PollingStrategy.Timestamp(stored[7] + 1), count=2) == []

    run(work())


def test_consumer_offsets_are_stored_shown_and_deleted(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name, 2)
        await send(client, stream_name, texts(0, 9))
        place = READER + address_of(stream_name, 0)

        async def store(offset, where=place):
            await client.send_binary_request(121, where + struct.pack("<QB", offset, 0))

        assert await client.send_binary_request(120, place) == b""
        await store(6)
        assert bytes(await client.send_binary_request(120, place)) == struct.pack("<IQQ", 0, 8, 6)
        for offset, where in ((9, place), (0, READER + address_of(stream_name, 1))):
            with pytest.raises(RuntimeError, match="Invalid offset"):
                await store(offset, where)
        assert await poll(client, stream_name, PollingStrategy.Next()) == numbered(7, 9)
        await client.send_binary_request(122, place + b"\0")
        assert await client.send_binary_request(120, place) == b""
        with pytest.raises(RuntimeError, match="Consumer offset"):
            await client.send_binary_request(122, place + b"\0")

    run(work())


def test_a_purged_topic_starts_at_zero_again_and_keeps_its_id(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name, 2)
        before = await client.get_topic(stream_name, "t")
        for purge in (lambda: client.purge_topic(stream_name, "t"), lambda: client.purge_stream(stream_name)):
            await send(client, stream_name, texts(0, 4))
            await client.send_binary_request(121, READER + address_of(stream_name, 0) + struct.pack("<QB", 2, 0))
            await purge()
            await eventually(lambda: empty(client, stream_name))
            assert await send(client, stream_name, ["m0"]) == 0
            assert await poll(client, stream_name, PollingStrategy.Next()) == numbered(0, 1)
            await client.purge_topic(stream_name, "t")
            await eventually(lambda: empty(client, stream_name))
        after = await client.get_topic(stream_name, "t")
        assert (after.id, after.created_at) == (before.id, before.created_at)

    run(work())


async def empty(client, stream):
    return await poll(client, stream) == []


def test_deleted_segments_are_skipped_silently(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name, segment_size=1 << 20, messages_required_to_save=1)
        for _ in range(9):
            await send(client, stream_name, ["x" * 450_000])
        await client.send_binary_request(503, address_of(stream_name) + struct.pack("<II", 0, 2))

        async def first():
            found = await poll(client, stream_name, count=1)
            return found[0][0]

        async def some_are_gone():
            return await first() > 0

        await eventually(some_are_gone)
        # Where exactly a segment ends is the server's affair: three such messages fill one.
        assert await first() == 6
        assert [offset for offset, _ in await poll(client, stream_name)] == [6, 7, 8]
        assert await send(client, stream_name, ["next"]) == 9

    run(work())


def test_a_missing_target_is_named_by_an_error(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name)
        one = [SendMessage("x")]
        for stream, topic, partition in (("nope", "t", 0), (stream_name, "nope", 0), (stream_name, "t", 9)):
            with pytest.raises(RuntimeError, match="Resource with key"):
                await client.send_messages(stream, topic, partition, one)
        with pytest.raises(RuntimeError, match="Stream with ID"):
            await poll(client, "nope")
        with pytest.raises(RuntimeError, match="Partition with ID"):
            await poll(client, stream_name, partition=9)
        await client.delete_topic(stream_name, "t")
        with pytest.raises(RuntimeError, match="Topic with ID"):
            await poll(client, stream_name)

    run(work())


def test_a_batch_encoded_by_hand_is_stored_like_the_clients_own(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name)
        payloads = [f"m{number}".encode() for number in range(50)]
        reply = bytes(await client.send_binary_request(101, send_body(stream_name, encode_batch(payloads), 50)))
        stream = await client.get_stream(stream_name)
        assert reply == struct.pack("<IIIIQ", 1, stream.id, 0, 0, 0)
        found = await poll_messages(client, stream_name)
        assert [(m.offset(), m.id(), m.payload()) for m in found] == [(i, i + 1, p) for i, p in enumerate(payloads)]

    run(work())


@pytest.mark.parametrize("position", [40, 256, 256 + 48])
def test_a_wrong_checksum_is_never_confirmed_and_stores_nothing(iggy_url, stream_name, position):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name)
        batch = encode_batch([b"abc", b"def"])
        batch[position] ^= 1
        # The embedded server drops the connection; the real one never answers, and the client gives up after 30 s.
        with pytest.raises((RuntimeError, asyncio.TimeoutError)):
            await asyncio.wait_for(client.send_binary_request(101, send_body(stream_name, batch, 2)), 0.3)
        other = await connect(iggy_url)
        assert await poll(other, stream_name) == []
        assert await send(other, stream_name, ["m0"]) == 0

    run(work())


def test_a_big_message_goes_there_and_back(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name)
        payload = bytes(range(256)) * 40_000
        await client.send_messages(stream_name, "t", 0, [SendMessage(payload)] * 2)
        found = await poll_messages(client, stream_name, PollingStrategy.Offset(1))
        assert [(m.offset(), m.payload() == payload) for m in found] == [(1, True)]

    run(work())


def test_a_clients_id_is_its_own_and_goes_with_its_connection(iggy_url):
    async def work():
        first, second = await connect(iggy_url), await connect(iggy_url)
        mine, gone = [bytes(await client.send_binary_request(20, b""))[:4] for client in (first, second)]
        assert mine != gone

        async def listed():
            data, ids = bytes(await first.send_binary_request(22, b"")), []
            while data:
                ids.append(data[:4])
                data = data[13 + struct.unpack_from("<I", data, 9)[0] + 4 :]
            return ids

        assert {mine, gone} <= set(await listed())
        del second

        async def left():
            return gone not in await listed()

        await eventually(left)
        assert mine in await listed()

    run(work())


def test_counts_and_offsets_show_in_a_topics_details(iggy_url, stream_name):
    async def work():
        client = await connect_with_topic(iggy_url, stream_name, 2)
        await send(client, stream_name, texts(0, 11), partition=1)

        async def counted():
            return (await client.get_topic(stream_name, "t")).messages_count == 11

        await eventually(counted)
        topic = await client.get_topic(stream_name, "t")
        assert [(p.id, p.current_offset, p.messages_count) for p in topic.partitions] == [(0, 0, 0), (1, 10, 11)]
        assert topic.size > 11 * 48
        assert (await client.get_stream(stream_name)).messages_count == 11

    run(work())
