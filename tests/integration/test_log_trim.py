"""Segments of the log are deleted on a server, and what is left loads as before."""

import os

from framework.engine.session import Session, open_connection
from framework.iggy.address import IggyAddress
from framework.iggy.log_trim import trim
from framework.offsets import OffsetManagerEntry
from framework.records import Lane, ObjectState
from framework.testing.options import source_config


def config_of(url, stream):
    return source_config(url=url, stream=stream, partitions=1)


def a_session(url, stream):
    config = config_of(url, stream)
    return Session(open_connection(IggyAddress.parse(url), config), config)


def first_offset(session):
    return session.connection.poll(session.log.stream, session.log.topic, 0, offset=0, count=1)[0].offset


def test_the_front_of_the_log_goes_and_the_state_stays(iggy_url, stream_name):
    session = a_session(iggy_url, stream_name)
    lane = Lane("records", 0)
    session.lanes.open_lane(lane)
    for number in range(60):
        for row in range(400):  # names that do not pack
            key = f"{number:03}/{row:03}/{os.urandom(150).hex()}"
            session.offsets.add_entry(
                OffsetManagerEntry(bucket="b", key=key, version="v", records_done=1, lane=lane, state=ObjectState.DONE)
            )
        session.saved(session.offsets.flush())
        for key in list(session.offsets._entries)[:-800]:  # as a fold would
            del session.offsets._entries[key]
        if number % 5 == 4:
            session.log.append_snapshot(session.recovered.epoch, *session._state())
    before = sorted(entry.key for entry in session.offsets.entries())
    trim(session.log, epoch=session.recovered.epoch)
    deleted_up_to = first_offset(session)
    assert deleted_up_to > 0
    session.close()
    again = a_session(iggy_url, stream_name)
    assert sorted(entry.key for entry in again.offsets.entries()) == before
    again.close()
