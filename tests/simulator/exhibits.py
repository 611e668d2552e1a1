"""Which planted mistakes there are (`museum`), in which histories they show, and within how many at the latest."""

EXHIBITS = {
    "saved_at_once": ("forgetting", 100),
    "held_back_by_too_few": ("forgetting", 600),
    "not_begun": ("plain", 100),
    "no_fence": ("late_requests", 600),
    "no_floor": ("resets", 800),
    "risen_over_what_waits": ("waiting", 100),
    "stale_counts": ("forgetting", 400),
    "any_part": ("snapshots", 300),
    "from_the_snapshots_end": ("snapshots", 300),
    "one_generation": ("restored", 1000),
    "no_look": ("seconds", 300),
    "no_mark": ("lost_logs", 300),
    "renamed_unnoticed": ("renamed", 100),
    "half_reset_is_enough": ("renamed", 600),
    "any_topic_of_the_name": ("renamed", 100),
    "moved_with_the_topic": ("renamed", 600),
    "any_place": ("endpoints", 100),
    "any_numbering": ("formats", 1000),
    "compacted_unsafe": ("forgetting_folded", 300),
    "anchor_ahead": ("forgetting", 300),
    "leader_by_stale_counts": ("forgetting_tasks", 300),
    "leader_by_unread_partitions": ("renumbered_tasks", 200),
    "numbered_anew": ("transforms", 100),
}
"""Name -> theme, histories."""
