"""Runs histories in a process of its own, whose clocks and threads are simulated from here on."""

import gc
import os
import signal
import sys
import time
import traceback
from collections import Counter

from tests.simulator import runtime

runtime.install()

from tests.simulator import adapter  # noqa: E402
from tests.simulator.checker import ViolationError  # noqa: E402
from tests.simulator.history import World  # noqa: E402
from tests.simulator.plans import plan_of  # noqa: E402

adapter.prepare()


def make_world(seed, plan, *, verbose=False):
    """A history, ready to run."""
    adapter.begin_history(plan.tuning)
    return World(seed, plan, adapter.LIVES, adapter.outcome_of, verbose=verbose)


MOST_SECONDS = 60
"""Of one core for one history: a thread that never waits would go on for ever, since no time passes."""


def watch(seed, theme):
    """Ends this process, with the place, when a history takes far too long."""

    def tell(*_):
        print(
            f"seed {seed}: BUSY: theme {theme}, more than {MOST_SECONDS} s in one history, in a thread that never waits:"
        )
        traceback.print_stack(limit=12, file=sys.stdout)
        sys.stdout.flush()
        os._exit(3)

    signal.signal(signal.SIGVTALRM, tell)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)


def run_history(seed, theme="all", *, verbose=False, tolerated=()):
    """None, or what is wrong."""
    world = make_world(seed, plan_of(seed, theme), verbose=verbose)
    world.tolerated = frozenset(tolerated)
    watch(seed, theme)
    try:
        world.run()
    except ViolationError as wrong:
        return wrong
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        run_history.steps = world.steps
        run_history.seconds = world.now
    return None


def begin(plant=""):
    if plant:
        from tests.simulator import museum

        getattr(museum, plant)()
    run_history(-1)  # whatever is loaded late is loaded now
    gc.collect()
    gc.freeze()
    gc.disable()


def run_one(seed, theme, *, verbose, plant="", tolerated=()):
    if plant:
        from tests.simulator import museum

        getattr(museum, plant)()
    began = runtime.real_time()
    wrong = run_history(seed, theme, verbose=verbose, tolerated=tolerated)
    print(
        f"seed {seed}: {wrong or 'nothing wrong'} "
        f"({run_history.steps} steps, {run_history.seconds:.1f} s told, {runtime.real_time() - began:.3f} s)"
    )
    return 1 if wrong else 0


def run_scenarios():
    from tests.simulator.scenarios import SCENARIOS

    wrong = 0
    for name, scenario in SCENARIOS.items():
        for seed in range(10):
            try:
                scenario(seed)
            except ViolationError as error:
                wrong += 1
                print(f"{name}, seed {seed}: {error}"[:600], flush=True)
    print(f"{len(SCENARIOS)} scenarios, {wrong} wrong")
    return 1 if wrong else 0


def run_many(options):
    begin(options.plant)
    began, found, rules = time.process_time(), 0, Counter()
    count = 0
    for count, seed in enumerate(range(options.seed, options.seed + options.histories * options.step, options.step), 1):
        try:
            wrong = run_history(seed, options.theme, tolerated=options.tolerate)
        except BaseException:
            print(f"seed {seed}: the simulator itself failed", flush=True)
            raise
        if wrong is not None:
            found += 1
            rules[wrong.rule] += 1
            print(f"seed {seed}: {wrong}"[:600], flush=True)
            if found >= options.most:
                break
        if count % 50 == 0:
            gc.collect()
        if count % 1000 == 0:
            print(f"... {count}", flush=True)
    seconds = time.process_time() - began
    each = 1000 * seconds / max(count, 1)
    print(
        f"{count} histories, {found} wrong {dict(rules) or ''}, {seconds:.0f} s of one core, {each:.1f} ms each",
        flush=True,
    )
    return 1 if found else 0
