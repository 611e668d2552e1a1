"""`python -m benchmarks`: the table of `main_job`."""

from benchmarks.main_job import main

if __name__ == "__main__":
    main()
