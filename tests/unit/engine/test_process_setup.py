"""Memory settings: those of a process of the program, not of this one."""

import subprocess
import sys


def _said(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_process_of_the_program_seldom_looks_for_cycles():
    code = "import gc; from framework.engine.process_setup import set_up_process; set_up_process(); print(gc.get_threshold()[0])"
    assert _said(code) == "50000\n"


def test_numpy_starts_no_thread_for_each_core():
    code = """if True:
        import os, sys
        from framework.engine.process_setup import set_up_process
        set_up_process()
        assert "numpy" not in sys.modules, "its threads are there already"
        import numpy
        print(len(os.listdir("/proc/self/task")))"""
    assert _said(code) == "1\n"
