"""`python -m tests.simulator`: histories by the thousand, or one that is told event by event."""

import argparse
import os
import sys

from tests.simulator.exhibits import EXHIBITS


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--step", type=int, default=1, help="every so many-th seed")
    parser.add_argument("--theme", help="of histories (tests.simulator.plans)")
    parser.add_argument("--one", type=int, help="this seed alone")
    parser.add_argument("--most", type=int, default=10, help="wrong ones after which to stop")
    parser.add_argument("--plant", default="", help="a mistake to put into the code (tests.simulator.museum)")
    parser.add_argument(
        "--scenarios",
        type=int,
        metavar="SEEDS",
        help="the scenarios that are told step by step, each with so many seeds",
    )
    parser.add_argument(
        "--museum", type=int, nargs=2, metavar=("PART", "PARTS"), help="whether planted mistakes are found"
    )
    parser.add_argument("--tolerate", action="append", default=[], help="a rule that may be broken")
    parser.add_argument(
        "--pairs",
        type=int,
        metavar="HISTORIES",
        help="name the pairs of kinds of events that met in fewer histories (tests.simulator.coverage)",
    )
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings have an order: the same one each time
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulator", *sys.argv[1:]])
    from tests.simulator.runner import look_at_museum, run_many, run_one, run_scenarios

    if options.museum is not None:
        return look_at_museum(*options.museum)
    if options.scenarios is not None:
        if options.plant:
            parser.error("--plant goes into histories; --scenarios are told without it")
        return run_scenarios(options.scenarios)
    if options.theme is None:
        options.theme = EXHIBITS[options.plant][0] if options.plant else "all"

    if options.one is not None:
        return run_one(
            options.one, options.theme, verbose=options.verbose, plant=options.plant, tolerated=options.tolerate
        )
    return run_many(options)


if __name__ == "__main__":
    sys.exit(main())
