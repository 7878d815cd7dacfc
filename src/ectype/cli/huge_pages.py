"""Huge memory pages for the verbs that compute on this machine's cores.

XLA's CPU client takes each step's buffers from malloc and gives them back: 170 MB a step at toy scale, 43,000 page
faults, a third of the step's time. glibc (2.35 and later) asks the kernel for huge pages if told so by an environment
variable, which it reads only when a process starts; hence the one restart.
"""

import os
import sys

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"
COMPUTING_VERBS = ("train", "evaluate", "compare", "faults", "demo")


def restart_with_huge_pages() -> None:
    """Replace this process by itself with the tunable set, once, where a computing verb runs on Linux.

    The process number, the open files and the arguments stay. A value that the user set is kept.
    """
    tunables = os.environ.get(VARIABLE, "")
    computes = any(argument in COMPUTING_VERBS for argument in sys.argv[1:2])
    if not computes or sys.platform != "linux" or TUNABLE in tunables:
        return
    os.environ[VARIABLE] = ":".join(filter(None, (tunables, f"{TUNABLE}=1")))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
