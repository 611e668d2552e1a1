"""Memory settings: those of a process of the program, not of this one."""

import subprocess
import sys


def test_a_process_of_the_program_seldom_looks_for_cycles():
    code = "import gc; from framework.engine.memory import tune_memory; tune_memory(); print(gc.get_threshold()[0])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said == "50000\n"
