"""The figures of a run, and their report."""

import pytest

from framework.discovery.object_feed import FeedCounts
from framework.engine.reporter import Reporter
from framework.errors import PositionError, TooManySkippedError
from framework.offsets.skip_history import SkippedCount
from framework.pipeline.task_statistics import TaskStatistics


def test_a_report_that_fails_changes_nothing_about_how_a_run_ends(caplog):
    """Its terminal may be gone: a run that has done everything is done, and an error keeps its exit code."""
    asked = []

    def report(progress):
        asked.append(progress)
        raise OSError("Input/output error")

    with pytest.raises(PositionError), Reporter(report, skipped_per_hour=1):
        raise PositionError("purged")
    assert len(asked) == 1
    assert "the progress could not be shown" in caplog.text


def test_the_end_of_an_epoch_counts_nothing_twice():
    """A scrape may come at any moment of it, and a counter that falls has begun again at zero."""
    reporter, seen = Reporter(None, skipped_per_hour=1), []

    def counts():
        if not seen:
            seen.append(None)  # the scrape asks for them, too
            seen.append(reporter.progress().records)
        return FeedCounts()

    reporter.watch_statistics(lambda: [TaskStatistics(records=5)], counts)
    reporter.unwatch()
    assert seen == [None, 5]
    assert reporter.progress().records == 5
    seen.clear()
    reporter.watch_statistics(lambda: [TaskStatistics(records=7)], counts)
    assert reporter.progress().records == 12
    assert seen == [None, 12]


def test_delivered_objects_do_not_fall_while_one_that_failed_is_not_finished():
    """Prometheus takes a counter that falls for one that has begun again, and adds it all."""
    reporter, figures = Reporter(None, skipped_per_hour=9), TaskStatistics(objects=5)
    reporter.watch_statistics(lambda: [figures], lambda: None)
    seen = [reporter.progress().delivered]
    for figures.failed, figures.objects in ((1, 5), (1, 6), (1, 7)):
        seen.append(reporter.progress().delivered)
    assert seen == [5, 5, 5, 6]


def test_what_a_broken_epoch_skipped_counts_once_towards_the_hourly_limit():
    """Seven were skipped by a reader that was ahead, four of them saved; the next epoch reads the other three again."""
    reporter = Reporter(None, skipped_per_hour=9)
    reporter.expect_skipped([SkippedCount(60, 1)])
    reporter.watch_statistics(lambda: [TaskStatistics(skipped=6), TaskStatistics(failed=1)], lambda: None)
    reporter.check_skipped()
    reporter.unwatch()
    reporter.recovered()
    reporter.expect_skipped([SkippedCount(70, 1), SkippedCount(5, 4)])
    reporter.check_skipped()
    figures = TaskStatistics(skipped=2)
    reporter.watch_statistics(lambda: [figures], lambda: None)
    for failed in (0, 1, 2):
        figures.failed = failed
        reporter.check_skipped()
    figures.failed = 3
    with pytest.raises(TooManySkippedError, match="10 bad records and objects within an hour"):
        reporter.check_skipped()


@pytest.mark.parametrize(("given_back", "state"), [(0, "sending"), (1, "waiting")])
def test_an_object_that_waits_for_the_next_listing_is_lag_and_no_work(given_back, state):
    reporter = Reporter(None, skipped_per_hour=9)
    feed = FeedCounts(total_chosen=3, total_chosen_bytes=30, given_back=given_back, listings=1, waiting=True)
    reporter.watch_statistics(
        lambda: [TaskStatistics(objects=2, object_bytes=20, vanished=1, archived=4)], lambda: feed
    )
    progress = reporter.progress()
    assert (progress.lag_objects, progress.lag_bytes, progress.state) == (1, 10, state)
    reporter.unwatch()
    assert reporter.work_done().idle is bool(given_back)


def figures(progress):
    return progress.objects, progress.objects_total, progress.lag_objects, progress.lag_bytes


def test_the_lag_stays_while_iggy_is_away_and_until_a_listing_has_shown_what_is_left():
    reporter = Reporter(None, skipped_per_hour=9)
    reporter.watch_statistics(
        lambda: [TaskStatistics(objects=2, object_bytes=20)],
        lambda: FeedCounts(total_chosen=5, total_chosen_bytes=50, listings=3, done_before=7),
    )
    reporter.unwatch()
    assert figures(reporter.progress()) == (2, 5, 3, 30)
    reporter.recovered()
    feed = FeedCounts()
    reporter.watch_statistics(lambda: [TaskStatistics()], lambda: feed)
    assert figures(reporter.progress()) == (2, 5, 3, 30)
    feed.total_chosen, feed.total_chosen_bytes, feed.done_before = 2, 20, 9
    assert figures(reporter.progress()) == (2, 5, 3, 30)
    feed.listings = 1
    assert figures(reporter.progress()) == (2, 4, 2, 20), "one was deleted meanwhile"
    progress = reporter.progress()
    assert (progress.listings, progress.done_before, progress.recoveries) == (4, 7, 1)


def test_what_a_stopped_run_leaves_is_in_its_last_figures():
    with Reporter(None, skipped_per_hour=9) as reporter:
        reporter.watch_statistics(lambda: [TaskStatistics(objects=2)], lambda: FeedCounts(total_chosen=5))
        reporter.unwatch()
    assert figures(reporter.last)[:3] == (2, 5, 3)


def test_an_object_counts_once_however_often_a_recovery_reads_it_again():
    """Of ten finished objects four were not saved; of forty unsaved records, and fifteen unconfirmed ones, all were stored."""
    reporter, seen = Reporter(None, skipped_per_hour=9), []
    first = TaskStatistics(
        records=100, unsaved_records=40, objects=10, unsaved_objects=4, object_bytes=100, unsaved_object_bytes=40
    )
    reporter.watch_statistics(lambda: [first], lambda: FeedCounts(total_chosen=20, total_chosen_bytes=200, listings=1))
    reporter.unwatch()
    reporter.recovered()
    work, feed = TaskStatistics(), FeedCounts(total_chosen=14, total_chosen_bytes=140, listings=1, waiting=True)
    reporter.watch_statistics(lambda: [work], lambda: feed)
    for objects in range(15):
        work.objects, work.object_bytes, work.found_records, work.records = objects, 10 * objects, 55, 5 * objects
        seen.append(reporter.progress())
    assert [progress.objects for progress in seen] == [10] * 5 + [*range(11, 21)]
    assert [progress.records for progress in seen] == [115 + 5 * objects for objects in range(15)]
    assert {(progress.objects_total, progress.bytes_total) for progress in seen} == {(20, 200)}
    assert [progress.state for progress in seen] == ["sending"] * 14 + ["waiting"]
    reporter.unwatch()
    assert reporter.work_done().idle
    assert (reporter.progress().records, reporter.progress().objects, reporter.progress().lag_bytes) == (185, 20, 0)


def test_what_an_earlier_process_sent_is_not_of_this_run():
    reporter = Reporter(None, skipped_per_hour=9)
    for found, records in (7, 0), (3, 3):
        reporter.watch_statistics(lambda found=found: [TaskStatistics(found_records=found)], FeedCounts)
        assert reporter.progress().records == records
        reporter.unwatch()
        reporter.recovered()
