"""Runs histories in a process of its own, whose clocks and threads are simulated from here on."""

import gc
import os
import re
import signal
import sys
import time
import traceback
from collections import Counter

from tests.simulator import runtime

runtime.install()

from tests.simulator import adapter, museum  # noqa: E402
from tests.simulator.checker import ViolationError  # noqa: E402
from tests.simulator.coverage import pairs_met, report  # noqa: E402
from tests.simulator.exhibits import EXHIBITS, SENT_BESIDE  # noqa: E402
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


def run_history(seed, theme="all", *, verbose=False, tolerated=(), sends_beside=None):
    """None, or what is wrong. Records are sent over a connection of their own in every other history, unless told."""
    world = make_world(seed, plan_of(seed, theme), verbose=verbose)
    world.sends_beside = seed % 2 == 1 if sends_beside is None else sends_beside
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
        run_history.met = world.events, world.properties
    return None


def begin(plant=""):
    if plant:
        getattr(museum, plant)()
    run_history(-1)  # whatever is loaded late is loaded now
    gc.collect()
    gc.freeze()
    gc.disable()


def collect(count):
    """Frees what a history leaves in cycles while it is still in the processor's cache; rarely also what outlived that.

    Between histories alone: in the middle of them it would close what a killed process held open.
    """
    gc.collect(0 if count % 50 else 2)


def run_one(seed, theme, *, verbose, plant="", tolerated=()):
    if plant:
        getattr(museum, plant)()
    began = runtime.real_time()
    wrong = run_history(seed, theme, verbose=verbose, tolerated=tolerated)
    print(
        f"seed {seed}: {wrong or 'nothing wrong'} "
        f"({run_history.steps} steps, {run_history.seconds:.1f} s told, {runtime.real_time() - began:.3f} s)"
    )
    return 1 if wrong else 0


def other_configurations(plans=200):
    """How many plans have settings that loading makes into another configuration than histories go by."""
    settings = (plan_of(seed, "mixed").settings for seed in range(plans))
    return sum(adapter.make_config(one) != adapter.load_config(one) for one in settings)


def run_scenarios(seeds):
    from tests.simulator.scenarios import SCENARIOS

    wrong = other_configurations()
    if wrong:
        print(f"configurations: {wrong} are not what loading makes of their settings", flush=True)
    for name, scenario in SCENARIOS.items():
        for seed in range(seeds):
            try:
                scenario(seed)
            except ViolationError as error:
                wrong += 1
                print(f"{name}, seed {seed}: {error}"[:600], flush=True)
    print(f"{len(SCENARIOS)} scenarios, {wrong} wrong")
    return 1 if wrong else 0


OUTDATED = re.compile(r"^BROKEN: .*\b(?:Attribute|Name|Type|Assertion)Error:")
"""What a history says when the exhibit itself is wrong: a name or a signature that the code no longer has."""


def look_at_museum(part, parts):
    """Each exhibit in a process of its own, since it stays in the code; a fork, so that nothing is loaded again."""
    begin()
    missed = 0
    for name, (theme, histories, seed) in list(EXHIBITS.items())[part::parts]:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            status = 1
            try:
                status = look_at(name, theme, histories, seed)
            except BaseException:  # noqa: BLE001 - it ends this process alone
                traceback.print_exc(file=sys.stdout)
            finally:
                sys.stdout.flush()
                os._exit(status)
        missed += os.waitpid(child, 0)[1] != 0
    return 1 if missed else 0


def look_at(name, theme, histories, seed):
    """Whether the exhibit shows: in the history where it last did, else in one of the first so many."""
    getattr(museum, name)()
    for count, candidate in enumerate(dict.fromkeys((seed, *range(histories))), 1):
        wrong = run_history(candidate, theme, sends_beside=name in SENT_BESIDE)
        if wrong is not None and OUTDATED.search(str(wrong)):
            print(f"{name}: no longer fits the code it changes, seed {candidate}: {wrong}")
            return 1
        if wrong is not None:
            moved = "" if candidate == seed else f", no longer by seed {seed}: put this one into exhibits.py"
            print(f"{name}: found by seed {candidate}, {wrong.rule}{moved}")
            return 0
        collect(count)
    print(f"{name}: NOT FOUND in {histories} histories of theme {theme}")
    return 1


def run_many(options):
    begin(options.plant)
    began, found, rules, pairs = time.process_time(), 0, Counter(), Counter()
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
        if options.pairs is not None:
            pairs.update(pairs_met(*run_history.met))
        collect(count)
        if count % 1000 == 0:
            print(f"... {count}", flush=True)
    if options.pairs is not None:
        print("\n".join(report(pairs, options.pairs)))
    seconds = time.process_time() - began
    each = 1000 * seconds / max(count, 1)
    print(
        f"{count} histories, {found} wrong {dict(rules) or ''}, {seconds:.0f} s of one core, {each:.1f} ms each",
        flush=True,
    )
    return 1 if found else 0
