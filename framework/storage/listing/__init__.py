"""Parallel listing of one prefix: planner, pages, key space, concurrency."""
