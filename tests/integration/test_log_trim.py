"""Segments of the log are deleted on a server, and what is left loads as before."""

import os

from framework.config.iggy_address import IggyAddress
from framework.engine.iggy_target import open_connection
from framework.engine.session import Session
from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.testing.options import source_config


def a_session(url, stream):
    config = source_config(url=url, stream=stream, partitions=1)
    return Session.begin(open_connection(IggyAddress.parse(url), config), config)


def first_offset(session):
    return session.connection.poll(session.log.stream, session.log.topic, 0, offset=0, count=1)[0].offset


def test_the_front_of_the_log_goes_and_the_state_stays(iggy_url, stream_name):
    session = a_session(iggy_url, stream_name)
    session.open_partitions()
    topic_partition = TopicPartition("records", 0)
    keys = []
    for number in range(40):
        for row in range(400):  # names that do not pack
            key = f"{number:03}/{row:03}/{os.urandom(150).hex()}"
            entry = OffsetManagerEntry(bucket="b", key=key, version="v", topic_partition=topic_partition)
            keys.append(session.offsets.add_entry(entry).get_manager_key())
        session.offsets.flush()
        while len(keys) > 800:
            session.offsets.remove_entry(keys.pop(0))
        session.offsets.flush()
        if number % 5 == 4:
            session.write_snapshot()
    before = sorted(entry.key for entry in session.offsets.table.entries())
    assert len(before) == 800
    assert first_offset(session) > 0
    session.close()
    again = a_session(iggy_url, stream_name)
    assert sorted(entry.key for entry in again.offsets.table.entries()) == before
    again.close()
